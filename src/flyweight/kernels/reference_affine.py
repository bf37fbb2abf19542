"""The definition of the affine family, in NumPy: packed codes with a scale per group of columns, to values and back.

    scale_bias   w = code · s + b         scale_zero   w = (code − z) · s
    signed_bias  w = signed code · s + b  symmetric    w = signed code · s

A row of codes is the bit stream of `reference.unpack_bits`; the last group of a row may be short. Each operation rounds to
f32, in the order written. Signed codes are two's complement.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flyweight.dtypes import DType
from flyweight.kernels.reference import pack_bits, unpack_bits

__all__: list[str] = []  # named by `flyweight.kernels.KERNELS`

Array = np.ndarray[Any, Any]

_STORED = (DType.F32, DType.F16, DType.BF16)
"""The types a scale or bias may be rounded to, by the number kernels know them by."""


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    codes = np.empty((len(packed), count), np.uint8)
    unpack_bits(packed, bits, codes)
    return codes


def _per_column(groups: Array, group: int, columns: int) -> Array:
    return groups[:, np.arange(columns) // group]


# Decoding -------------------------------------------------------------------------------------


def decode_scale_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    columns = out.shape[1]
    np.multiply(_unpacked(packed, bits, columns), _per_column(scale, group, columns), out=out, dtype=np.float32)
    np.add(out, _per_column(bias, group, columns), out=out)


def decode_scale_zero(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    columns = out.shape[1]
    np.subtract(_unpacked(packed, bits, columns), _per_column(zero, group, columns), out=out, dtype=np.float32)
    np.multiply(out, _per_column(scale, group, columns), out=out)


def decode_signed_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    decode_symmetric(packed, bits, scale, group, out)
    np.add(out, _per_column(bias, group, out.shape[1]), out=out)


def decode_symmetric(packed: Array, bits: int, scale: Array, group: int, out: Array) -> None:
    half = 1 << bits - 1
    signed = (_unpacked(packed, bits, out.shape[1]) ^ np.uint8(half)).astype(np.float32) - np.float32(half)
    np.multiply(signed, _per_column(scale, group, out.shape[1]), out=out)


# Encoding -------------------------------------------------------------------------------------


def _extremes(values: Array, group: int) -> tuple[Array, Array, Array]:
    """The least and the greatest value of each group, in double precision, and whether all its values are finite."""
    starts = np.arange(0, values.shape[1], group)
    # Which zero is the least of +0 and −0 differs between processors; adding +0 makes every zero positive.
    low, high = (extreme.reduceat(values, starts, axis=1) + np.float32(0) for extreme in (np.minimum, np.maximum))
    finite = np.isfinite(low) & np.isfinite(high)
    return low.astype(np.float64), high.astype(np.float64), finite


def _fill(top: int, steps: Array, packed: Array, bits: int, flip: int = 0) -> None:
    """The nearest whole number of steps, ties to even, held within the grid; NaN gives 0."""
    nearest = np.clip(np.rint(np.where(np.isnan(steps), np.float32(0), steps)), 0, top)
    pack_bits(nearest.astype(np.uint8) ^ np.uint8(flip), bits, packed)


def encode_scale_bias(values: Array, bits: int, group: int, stored: int, packed: Array, scale: Array, bias: Array) -> None:
    """The grid from the least to the greatest value of a group; a group that is not finite has a NaN scale and a bias of 0."""
    top, columns = (1 << bits) - 1, values.shape[1]
    low, high, finite = _extremes(values, group)
    scale[...] = np.where(finite, ((high - low) / top).astype(_STORED[stored].numpy), np.float32(np.nan))
    bias[...] = np.where(finite, low.astype(_STORED[stored].numpy), np.float32(0))
    step, origin = _per_column(scale, group, columns), _per_column(bias, group, columns)
    steps = np.divide(values - origin, step, out=np.zeros_like(values), where=step != 0)
    _fill(top, steps, packed, bits)


def encode_symmetric(values: Array, bits: int, group: int, stored: int, packed: Array, scale: Array) -> None:
    """The grid of ± the greatest magnitude of a group; one bit has no positive code, and its grid is −s and 0."""
    half, columns = 1 << bits - 1, values.shape[1]
    low, high, finite = _extremes(values, group)
    scale[...] = np.where(finite, (np.maximum(high, -low) / max(half - 1, 1)).astype(_STORED[stored].numpy), np.float32(np.nan))
    step = _per_column(scale, group, columns)
    steps = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step != 0)) + np.float32(half)
    _fill(2 * half - 1, steps, packed, bits, flip=half)


def encode_signed_bias(values: Array, bits: int, group: int, stored: int, packed: Array, scale: Array, bias: Array) -> None:
    """The grid of `encode_scale_bias`, its bias the value of code 0, and the codes nearest to that; a constant has code 0."""
    half, columns = 1 << bits - 1, values.shape[1]
    low, high, finite = _extremes(values, group)
    scale[...] = np.where(finite, ((high - low) / (2 * half - 1)).astype(_STORED[stored].numpy), np.float32(np.nan))
    bias[...] = np.where(finite, (low + half * scale.astype(np.float64)).astype(_STORED[stored].numpy), np.float32(0))
    step, origin = _per_column(scale, group, columns), _per_column(bias, group, columns)
    steps = np.rint(np.divide(values - origin, step, out=np.zeros_like(values), where=step != 0)) + np.float32(half)
    _fill(2 * half - 1, steps, packed, bits, flip=half)
