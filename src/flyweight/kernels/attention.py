"""Attention over a key-value cache, normalisation and soft caps: docs/formats/attention.md.

Normalising, rotating and storing are exact, the rest is held to a bound.

    q, k ← rotate(rms_norm(q, k)),  q ← q · scale,  k and v to the cache
    s = q · k (capped: cap · tanh(s / cap)),  p = softmax of s over the keys a query sees,  out = p · v

A query sees the keys of its own position and before it, the last `window` of them if there is a window. An int8 cache keeps
keys on grids per element over 64 tokens, except those of the query's own 64, and values on a grid per token.

One call per layer and step. Tokens come by the thousand, so the extension checks its arrays itself; the checks here stand
before the definition alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flyweight.kernels.checks import F16, F32, U8, Array, check
from flyweight.kernels.registry import active, kernel

GROUP = 64
"""Tokens whose int8 keys share a grid."""


def _inverse_rms(x: Array, eps: float) -> Array:
    """1 / √(mean x² + eps) of the last axis, in f64 with eight running sums: one order, hence the same bits everywhere."""
    count = x.shape[-1]
    squares = np.zeros((*x.shape[:-1], -(-count // 8) * 8))
    squares[..., :count] = x.astype(np.float64) ** 2
    lanes = np.add.accumulate(squares.reshape(*x.shape[:-1], -1, 8), axis=-2)[..., -1, :]
    halves = lanes[..., :4] + lanes[..., 4:]
    total = (halves[..., 0] + halves[..., 2]) + (halves[..., 1] + halves[..., 3])
    return np.asarray(1.0 / np.sqrt(total / count + np.float64(np.float32(eps)))).astype(np.float32)[..., None]


@kernel
def _rms_norm(x: Array, gain: Array, eps: float, out: Array, add: bool) -> None:
    normed = x * _inverse_rms(x, eps) * gain
    out[...] = out + normed if add else normed


@kernel
def _softcap(x: Array, cap: float) -> None:
    np.multiply(np.tanh(x / np.float32(cap)), np.float32(cap), out=x)


def _rotate(x: Array, cos: Array, sin: Array, pairs: bool) -> None:
    """x (tokens, heads, head) in place; element pairs are neighbours, or the two halves of what is rotated."""
    half = cos.shape[1]
    one, other = (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]) if pairs else (x[..., :half], x[..., half : 2 * half])
    c, s = cos[:, None, :], sin[:, None, :]
    turned = one * c - other * s, other * c + one * s
    one[...], other[...] = turned


def _grid(values: Array, axis: int) -> tuple[Array, Array, Array]:
    """Codes, low and step of 256 steps from the least to the greatest value; low is NaN where a run is not finite."""
    low, high = values.min(axis=axis, keepdims=True), values.max(axis=axis, keepdims=True)
    span = high - low
    steps = np.float32(255) / span
    finite = np.isfinite(span)
    fits = finite & (span > 0) & np.isfinite(steps)
    codes = np.rint(np.where(fits, (values - low) * steps, 0)).astype(np.uint8)
    low = np.where(finite, low, np.float32(np.nan))
    return codes, low, np.where(fits, span / np.float32(255), np.float32(0))


def _split(qkv: Array, heads: int, kv_heads: int, head: int) -> tuple[Array, Array, Array]:
    """Views q (tokens, heads, head), k and v (tokens, kv_heads, head)."""
    cuts = heads * head, (heads + kv_heads) * head
    return tuple(part.reshape(len(qkv), -1, head) for part in np.split(qkv, cuts, axis=1))  # type: ignore[return-value]


def _prepare(
    q: Array,
    k: Array,
    cos: Array,
    sin: Array,
    pairs: bool,
    q_gain: Array | None,
    k_gain: Array | None,
    eps: float,
    scale: float,
) -> None:
    for x, gain in ((q, q_gain), (k, k_gain)):
        if gain is not None:
            _rms_norm.definition(x, gain, eps, x, False)
        _rotate(x, cos, sin, pairs)
    q *= np.float32(scale)


Seen = Callable[[int, int], tuple[Array, Array]]
"""seen(group, end): the keys and values before `end` as queries of that group of 64 see them, f32 (kv_heads, end, head)."""


def _append_floats(k: Array, v: Array, keys: Array, values: Array, start: int) -> Seen:
    end = start + k.shape[1]
    keys[:, start:end], values[:, start:end] = k, v

    def seen(_: int, before: int) -> tuple[Array, Array]:
        return keys[:, :before].astype(np.float32), values[:, :before].astype(np.float32)

    return seen


def _append_codes(
    k: Array, v: Array, keys: Array, values: Array, start: int, key_grid: Array, value_grid: Array, tail: Array
) -> Seen:
    end = start + k.shape[1]
    values[:, start:end], low, step = _grid(v, axis=2)
    value_grid[:, start:end] = np.concatenate([low, step], axis=2)

    oldest = (start - 1) // GROUP * GROUP if start else 0  # what the tail and this call hold as f32
    fresh = np.concatenate([tail[:, : start - oldest], k], axis=1)
    newest = (end - 1) // GROUP * GROUP
    for first in range(oldest, newest, GROUP):
        codes, low, step = _grid(fresh[:, first - oldest : first - oldest + GROUP], axis=1)
        keys[:, first : first + GROUP] = codes
        key_grid[:, first // GROUP] = np.concatenate([low, step], axis=1)
    tail[:, : end - newest] = fresh[:, newest - oldest :]

    def seen(group: int, before: int) -> tuple[Array, Array]:
        closed = group * GROUP
        lows, steps = (np.repeat(key_grid[:, :group, i], GROUP, axis=1) for i in (0, 1))
        decoded = lows + steps * keys[:, :closed].astype(np.float32)
        scales = value_grid[:, :before]
        return (
            np.concatenate([decoded, fresh[:, closed - oldest : before - oldest]], axis=1),
            scales[..., :1] + scales[..., 1:] * values[:, :before].astype(np.float32),
        )

    return seen


def _softmax_product(q: Array, seen: Seen, kv_heads: int, start: int, cap: float, window: int, out: Array) -> None:
    count, heads, _ = q.shape
    results = out.reshape(q.shape)
    for group in range(start // GROUP, (start + count - 1) // GROUP + 1):
        first, last = max(start, group * GROUP), min(start + count, (group + 1) * GROUP)
        keys, values = seen(group, last)
        own, every = np.arange(first, last)[:, None], np.arange(last)[None, :]
        hidden = (every > own) | ((every <= own - window) if window else False)
        for h in range(heads):
            kv = h // (heads // kv_heads)
            scores = q[first - start : last - start, h] @ keys[kv].T
            if cap > 0:
                _softcap.definition(scores, cap)
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            results[first - start : last - start, h] = (weights @ values[kv]) / weights.sum(axis=1, keepdims=True)


@kernel
def _attend(
    qkv: Array,
    heads: int,
    keys: Array,
    values: Array,
    start: int,
    cos: Array,
    sin: Array,
    out: Array,
    pairs: bool,
    q_gain: Array | None,
    k_gain: Array | None,
    eps: float,
    scale: float,
    cap: float,
    window: int,
    threads: int,
    key_grid: Array | None,
    value_grid: Array | None,
    tail: Array | None,
) -> None:
    kv_heads, _, head = keys.shape
    q, k, v = _split(qkv, heads, kv_heads, head)
    end = start + len(qkv)
    _prepare(q, k, cos[start:end], sin[start:end], pairs, q_gain, k_gain, eps, scale)
    new = k.swapaxes(0, 1), v.swapaxes(0, 1)
    if key_grid is None or value_grid is None or tail is None:
        seen = _append_floats(*new, keys, values, start)
    else:
        seen = _append_codes(*new, keys, values, start, key_grid, value_grid, tail)
    _softmax_product(q, seen, kv_heads, start, cap, window, out)


# Checked --------------------------------------------------------------------------------------

MOST_CONTEXT = 1 << 30


def _check_attention(
    qkv: Array,
    heads: int,
    keys: Array,
    values: Array,
    start: int,
    cos: Array,
    sin: Array,
    out: Array,
    gains: tuple[Array | None, Array | None],
    window: int,
    threads: int,
    grids: tuple[Array | None, Array | None, Array | None],
) -> None:
    element = keys.dtype if isinstance(keys, np.ndarray) and keys.dtype in (F16, U8) else F32
    check("keys", keys, element, (None, None, None), written=True)
    kv_heads, context, head = keys.shape
    check("values", values, element, keys.shape, written=True)
    if head < 8 or head % 8 or head > 512:
        raise ValueError(f"a head has a multiple of 8 elements, at most 512, not {head}")
    if kv_heads < 1 or heads < 1 or heads % kv_heads or heads // kv_heads > 32:
        raise ValueError(f"1 to 32 heads share a key-value head, not {heads} heads {kv_heads}")
    check("qkv", qkv, F32, (None, (heads + 2 * kv_heads) * head), written=True)
    count = len(qkv)
    check("out", out, F32, (count, heads * head), written=True)
    if count < 1 or start < 0 or context > MOST_CONTEXT or start + count > context:
        raise ValueError(f"{count} tokens at {start} do not fit a cache of {context}")
    check("cos", cos, F32, (None, None))
    check("sin", sin, F32, cos.shape)
    if 2 * cos.shape[1] > head or (cos.shape[1] and len(cos) < start + count):
        raise ValueError(f"cos and sin of shape {cos.shape} do not serve heads of {head} up to position {start + count}")
    for gain in gains:
        if gain is not None:
            check("gain", gain, F32, (head,))
    if window < 0 or not 1 <= threads <= 256:
        raise ValueError("window must not be negative, threads must be 1 to 256")
    if [grid is not None for grid in grids] != [element == U8] * 3:
        raise ValueError("key_grid, value_grid and tail belong to a cache of u8, and to no other")
    if element == U8:
        if context % GROUP:
            raise ValueError(f"a cache of u8 holds whole groups of {GROUP} tokens, not {context}")
        shapes = (kv_heads, context // GROUP, 2, head), (kv_heads, context, 2), (kv_heads, GROUP, head)
        for label, grid, shape in zip(("key_grid", "value_grid", "tail"), grids, shapes, strict=True):
            check(label, np.asarray(grid), F32, shape, written=True)


def attend(
    qkv: Array,
    heads: int,
    keys: Array,
    values: Array,
    start: int,
    cos: Array,
    sin: Array,
    out: Array,
    pairs: bool = False,
    q_gain: Array | None = None,
    k_gain: Array | None = None,
    eps: float = 1e-6,
    scale: float = 1.0,
    cap: float = 0.0,
    window: int = 0,
    threads: int = 1,
    key_grid: Array | None = None,
    value_grid: Array | None = None,
    tail: Array | None = None,
) -> None:
    """Append the tokens of qkv at position `start`, and let each attend to what it sees.

    qkv: f32 (n, (heads + 2 · kv_heads) · head), q | k | v, left normalised and rotated; keys, values: f32, f16 or u8 codes
    (kv_heads, context, head); cos, sin: f32 (positions, up to head / 2); gains: f32 (head) or None; out: f32 (n, heads · head).
    cap and window: 0 for none. pairs: neighbouring elements are rotated together, not the two halves.
    Codes have key_grid: f32 (kv_heads, context / 64, 2, head), low then step; value_grid: f32 (kv_heads, context, 2); tail: f32
    (kv_heads, 64, head), the keys of the newest token's 64.
    """
    grids = key_grid, value_grid, tail
    if active() == "reference":
        _check_attention(qkv, heads, keys, values, start, cos, sin, out, (q_gain, k_gain), window, threads, grids)
    _attend.run(qkv, heads, keys, values, start, cos, sin, out, pairs, q_gain, k_gain, eps, scale, cap, window, threads, *grids)


def rms_norm(x: Array, gain: Array, eps: float, out: Array, add: bool = False) -> None:
    """out = x / √(mean x² + eps) · gain per row, or out += that. x, out: f32 (n, columns), may be one; gain: f32 (columns)."""
    if active() == "reference":
        check("x", x, F32, (None, None))
        check("gain", gain, F32, (x.shape[1],))
        check("out", out, F32, x.shape, written=True)
        if not x.shape[1]:
            raise ValueError("a row has at least one column")
    _rms_norm.run(x, gain, eps, out, add)


def softcap(x: Array, cap: float) -> None:
    """x = cap · tanh(x / cap) in place. x: f32 (n, columns)."""
    if not cap > 0:
        raise ValueError(f"a soft cap is positive, not {cap}")
    if active() == "reference":
        check("x", x, F32, (None, None), written=True)
    _softcap.run(x, cap)
