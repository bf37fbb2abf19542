"""Attention over a key-value cache, normalisation and soft caps: docs/formats/attention.md.

One call per layer and step. Tokens come by the thousand, so the extension checks its arrays itself; the checks here stand
before the NumPy twin alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flyweight.kernels.dispatch import F16, F32, U8, Array, active, check, running
from flyweight.kernels.reference_attention import GROUP

MOST_CONTEXT = 1 << 30


def _check(
    label: str, array: Array, kinds: Sequence[np.dtype[Any]], shape: tuple[int | None, ...], written: bool = False
) -> None:
    if not isinstance(array, np.ndarray) or array.dtype not in kinds:
        raise TypeError(f"{label} must be an array of {kinds[0]}, not {getattr(array, 'dtype', type(array).__name__)}")
    if array.ndim != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, array.shape, strict=True)
    ):
        raise ValueError(f"{label} must have shape {shape}, not {array.shape}")
    if not (array.flags.c_contiguous and array.flags.aligned) or (written and not array.flags.writeable):
        raise ValueError(f"{label} must be C-contiguous, aligned and, where it is written, writeable")


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
    kinds: Sequence[np.dtype[Any]],
) -> None:
    _check("keys", keys, kinds, (None, None, None), written=True)
    kv_heads, context, head = keys.shape
    _check("values", values, [keys.dtype], keys.shape, written=True)
    if head < 8 or head % 8 or head > 512:
        raise ValueError(f"a head has a multiple of 8 elements, at most 512, not {head}")
    if kv_heads < 1 or heads < 1 or heads % kv_heads or heads // kv_heads > 32:
        raise ValueError(f"1 to 32 heads share a key-value head, not {heads} heads {kv_heads}")
    _check("qkv", qkv, [F32], (None, (heads + 2 * kv_heads) * head), written=True)
    count = len(qkv)
    _check("out", out, [F32], (count, heads * head), written=True)
    if count < 1 or start < 0 or context > MOST_CONTEXT or start + count > context:
        raise ValueError(f"{count} tokens at {start} do not fit a cache of {context}")
    _check("cos", cos, [F32], (None, None))
    _check("sin", sin, [F32], cos.shape)
    if 2 * cos.shape[1] > head or (cos.shape[1] and len(cos) < start + count):
        raise ValueError(f"cos and sin of shape {cos.shape} do not serve heads of {head} up to position {start + count}")
    for gain in gains:
        if gain is not None:
            _check("gain", gain, [F32], (head,))
    if window < 0 or not 1 <= threads <= 256:
        raise ValueError("window must not be negative, threads must be 1 to 256")


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
) -> None:
    """Append the tokens of qkv at position `start`, and let each attend to what it sees.

    qkv: f32 (n, (heads + 2 · kv_heads) · head), q | k | v, left normalised and rotated; keys, values: f32 or f16 (kv_heads,
    context, head); cos, sin: f32 (positions, up to head / 2); gains: f32 (head) or None; out: f32 (n, heads · head).
    cap and window: 0 for none. pairs: neighbouring elements are rotated together, not the two halves.
    """
    if active() == "reference":
        _check_attention(qkv, heads, keys, values, start, cos, sin, out, (q_gain, k_gain), window, threads, (F32, F16))
    running["attend"](qkv, heads, keys, values, start, cos, sin, out, pairs, q_gain, k_gain, eps, scale, cap, window, threads)


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
    pairs: bool = False,
    q_gain: Array | None = None,
    k_gain: Array | None = None,
    eps: float = 1e-6,
    scale: float = 1.0,
    cap: float = 0.0,
    window: int = 0,
    threads: int = 1,
) -> None:
    """`attend` over a cache of codes.

    keys, values: u8 (kv_heads, context, head); key_grid: f32 (kv_heads, context / 64, 2, head), low then step; value_grid: f32
    (kv_heads, context, 2); tail: f32 (kv_heads, 64, head), the keys of the newest token's 64.
    """
    if active() == "reference":
        _check_attention(qkv, heads, keys, values, start, cos, sin, out, (q_gain, k_gain), window, threads, (U8,))
        kv_heads, context, head = keys.shape
        if context % GROUP:
            raise ValueError(f"an int8 cache holds whole groups of {GROUP} tokens, not {context}")
        _check("key_grid", key_grid, [F32], (kv_heads, context // GROUP, 2, head), written=True)
        _check("value_grid", value_grid, [F32], (kv_heads, context, 2), written=True)
        _check("tail", tail, [F32], (kv_heads, GROUP, head), written=True)
    running["attend_int8"](
        qkv, heads, keys, values, key_grid, value_grid, tail, start, cos, sin, out,
        pairs, q_gain, k_gain, eps, scale, cap, window, threads,
    )  # fmt: skip


def rms_norm(x: Array, gain: Array, eps: float, out: Array, add: bool = False) -> None:
    """out = x / √(mean x² + eps) · gain per row, or out += that. x, out: f32 (n, columns), may be one; gain: f32 (columns)."""
    if active() == "reference":
        check("x", x, F32, (None, None))
        _check("gain", gain, [F32], (x.shape[1],))
        check("out", out, F32, x.shape, written=True)
        if not x.shape[1]:
            raise ValueError("a row has at least one column")
    running["rms_norm"](x, gain, eps, out, add)


def softcap(x: Array, cap: float) -> None:
    """x = cap · tanh(x / cap) in place. x: f32 (n, columns)."""
    if not cap > 0:
        raise ValueError(f"a soft cap is positive, not {cap}")
    if active() == "reference":
        check("x", x, F32, (None, None), written=True)
    running["softcap"](x, cap)
