"""What attention means, in NumPy: docs/formats/attention.md. Normalising, rotating and storing are exact, the rest is bounded.

    q, k ← rotate(rms_norm(q, k)),  q ← q · scale,  k and v to the cache
    s = q · k (capped: cap · tanh(s / cap)),  p = softmax of s over the keys a query sees,  out = p · v

A query sees the keys of its own position and before it, the last `window` of them if there is a window. An int8 cache keeps
keys on grids per element over 64 tokens, except those of the query's own 64, and values on a grid per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

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


def rms_norm(x: Array, gain: Array, eps: float, out: Array, add: bool) -> None:
    normed = x * _inverse_rms(x, eps) * gain
    out[...] = out + normed if add else normed


def softcap(x: Array, cap: float) -> None:
    np.multiply(np.tanh(x / np.float32(cap)), np.float32(cap), out=x)


def _rotate(x: Array, cos: Array, sin: Array, pairs: bool) -> None:
    """x (tokens, heads, head) in place; element pairs are neighbours, or the two halves of what is rotated."""
    half = cos.shape[1]
    one, other = (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]) if pairs else (x[..., :half], x[..., half : 2 * half])
    c, s = cos[:, None, :], sin[:, None, :]
    turned = one * c - other * s, other * c + one * s
    one[...], other[...] = turned


def grid(values: Array, axis: int) -> tuple[Array, Array, Array]:
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
            rms_norm(x, gain, eps, x, False)
        _rotate(x, cos, sin, pairs)
    q *= np.float32(scale)


def _attend(
    q: Array,
    seen: Callable[[int, int], tuple[Array, Array]],
    kv_heads: int,
    start: int,
    cap: float,
    window: int,
    out: Array,
) -> None:
    """seen(group, end): the keys and values before `end` as queries of that group of 64 see them, (kv_heads, end, head)."""
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
                softcap(scores, cap)
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            results[first - start : last - start, h] = (weights @ values[kv]) / weights.sum(axis=1, keepdims=True)


def attend(
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
) -> None:
    kv_heads, _, head = keys.shape
    q, k, v = _split(qkv, heads, kv_heads, head)
    end = start + len(qkv)
    _prepare(q, k, cos[start:end], sin[start:end], pairs, q_gain, k_gain, eps, scale)
    keys[:, start:end] = k.swapaxes(0, 1)
    values[:, start:end] = v.swapaxes(0, 1)

    def seen(_: int, before: int) -> tuple[Array, Array]:
        return keys[:, :before].astype(np.float32), values[:, :before].astype(np.float32)

    _attend(q, seen, kv_heads, start, cap, window, out)


def attend_int8(
    qkv: Array,
    heads: int,
    keys: Array,
    values: Array,
    key_grid: Array,
    value_grid: Array,
    tail: Array,
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
) -> None:
    kv_heads, _, head = keys.shape
    q, k, v = _split(qkv, heads, kv_heads, head)
    end = start + len(qkv)
    _prepare(q, k, cos[start:end], sin[start:end], pairs, q_gain, k_gain, eps, scale)
    values[:, start:end], low, step = grid(v.swapaxes(0, 1), axis=2)
    value_grid[:, start:end] = np.concatenate([low, step], axis=2)

    oldest = (start - 1) // GROUP * GROUP if start else 0  # what the tail and this call hold as f32
    fresh = np.concatenate([tail[:, : start - oldest], k.swapaxes(0, 1)], axis=1)
    newest = (end - 1) // GROUP * GROUP
    for first in range(oldest, newest, GROUP):
        codes, low, step = grid(fresh[:, first - oldest : first - oldest + GROUP], axis=1)
        keys[:, first : first + GROUP] = codes
        key_grid[:, first // GROUP] = np.concatenate([low, step], axis=1)

    def seen(group: int, before: int) -> tuple[Array, Array]:
        closed = group * GROUP
        lows, steps = (np.repeat(key_grid[:, :group, i], GROUP, axis=1) for i in (0, 1))
        decoded = lows + steps * keys[:, :closed].astype(np.float32)
        scales = value_grid[:, :before]
        return (
            np.concatenate([decoded, fresh[:, closed - oldest : before - oldest]], axis=1),
            scales[..., :1] + scales[..., 1:] * values[:, :before].astype(np.float32),
        )

    _attend(q, seen, kv_heads, start, cap, window, out)
    tail[:, : end - newest] = fresh[:, newest - oldest :]
