"""Packed codes with a scale per group of columns, to values and back.

    scale_bias   w = code · s + b         scale_zero   w = (code − z) · s
    signed_bias  w = signed code · s + b  signed_zero  w = (signed code − z) · s
                                          symmetric    w = signed code · s

A row of codes is a bit stream; the last group of a row may be short. Each operation rounds to f32, in the order written; those
named `…_f16` then round the value to f16. Signed codes are two's complement.
"""

from __future__ import annotations

import numpy as np

from flyweight.foundation.dtypes import DType
from flyweight.kernels.checks import F32, U8, Array, check, check_group, check_numbers, check_stream, check_values
from flyweight.kernels.registry import kernel
from flyweight.kernels.streams.bit_streams import _pack_bits, _unpack_bits
from flyweight.kernels.streams.float_casts import also_from_bf16, also_to_bf16

STORED = ("f32", "f16", "bf16")
"""The types a scale may be rounded to when values are encoded."""


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    codes = np.empty((len(packed), count), np.uint8)
    _unpack_bits.definition(packed, bits, codes)
    return codes


def _signed(packed: Array, bits: int, count: int) -> Array:
    half = 1 << bits - 1
    signed: Array = (_unpacked(packed, bits, count) ^ np.uint8(half)).astype(np.float32) - np.float32(half)
    return signed


def _per_column(groups: Array, group: int, columns: int) -> Array:
    return groups[:, np.arange(columns) // group]


# Decoding -------------------------------------------------------------------------------------


@kernel
@also_to_bf16
def _decode_scale_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    columns = out.shape[1]
    np.multiply(_unpacked(packed, bits, columns), _per_column(scale, group, columns), out=out, dtype=np.float32)
    np.add(out, _per_column(bias, group, columns), out=out)


@kernel
@also_to_bf16
def _decode_scale_zero(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    columns = out.shape[1]
    np.subtract(_unpacked(packed, bits, columns), _per_column(zero, group, columns), out=out, dtype=np.float32)
    np.multiply(out, _per_column(scale, group, columns), out=out)


@kernel
@also_to_bf16
def _decode_signed_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    _decode_symmetric.definition(packed, bits, scale, group, out)
    np.add(out, _per_column(bias, group, out.shape[1]), out=out)


@kernel
@also_to_bf16
def _decode_symmetric(packed: Array, bits: int, scale: Array, group: int, out: Array) -> None:
    np.multiply(_signed(packed, bits, out.shape[1]), _per_column(scale, group, out.shape[1]), out=out)


@kernel
def _decode_signed_zero(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    columns = out.shape[1]
    np.subtract(_signed(packed, bits, columns), _per_column(zero, group, columns), out=out)
    np.multiply(out, _per_column(scale, group, columns), out=out)


@kernel
def _decode_scale_zero_f16(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    _decode_scale_zero.definition(packed, bits, scale, zero, group, out)
    out[...] = out.astype(np.float16)


@kernel
def _decode_signed_zero_f16(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    _decode_signed_zero.definition(packed, bits, scale, zero, group, out)
    out[...] = out.astype(np.float16)


# Encoding -------------------------------------------------------------------------------------


def _extremes(values: Array, group: int) -> tuple[Array, Array, Array]:
    """The least and the greatest value of each group, in double precision, and whether all its values are finite."""
    starts = np.arange(0, values.shape[1], group)
    # Which zero is the least of +0 and −0 differs between processors; adding +0 makes every zero positive.
    low, high = (extreme.reduceat(values, starts, axis=1) + np.float32(0) for extreme in (np.minimum, np.maximum))
    finite = np.isfinite(low) & np.isfinite(high)
    return low.astype(np.float64), high.astype(np.float64), finite


_LEAST_SPAN = np.float32(1e-12)


def _fill(top: int, steps: Array, packed: Array, bits: int, flip: int = 0) -> None:
    """The nearest whole number of steps, ties to even, held within the grid; NaN gives 0."""
    nearest = np.clip(np.rint(np.where(np.isnan(steps), np.float32(0), steps)), 0, top)
    _pack_bits.definition(nearest.astype(np.uint8) ^ np.uint8(flip), bits, packed)


@kernel
@also_from_bf16
def _encode_scale_bias(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array, bias: Array) -> None:
    """The grid from the least to the greatest value of a group; a group that is not finite has a NaN scale and a bias of 0."""
    top, columns = (1 << bits) - 1, values.shape[1]
    low, high, finite = _extremes(values, group)
    scale[...] = np.where(finite, ((high - low) / top).astype(DType.parse(stored).numpy), np.float32(np.nan))
    bias[...] = np.where(finite, low.astype(DType.parse(stored).numpy), np.float32(0))
    step, origin = _per_column(scale, group, columns), _per_column(bias, group, columns)
    steps = np.divide(values - origin, step, out=np.zeros_like(values), where=step != 0)
    _fill(top, steps, packed, bits)


@kernel
@also_from_bf16
def _encode_afq(values: Array, bits: int, group: int, packed: Array, scale: Array, bias: Array) -> None:
    """The grid of `encode_scale_bias` in f32 alone: a range under 1e-12 has the scale 1, halves are rounded away from zero."""
    top, columns = (1 << bits) - 1, values.shape[1]
    low, high, finite = _extremes(values, group)
    low, high = low.astype(np.float32), high.astype(np.float32)
    span = high - low
    step = np.where(span < _LEAST_SPAN, np.float32(1), span / np.float32(top))
    scale[...] = np.where(finite, step, np.float32(np.nan))
    bias[...] = np.where(finite, low, np.float32(0))
    steps = (values - _per_column(bias, group, columns)) / _per_column(scale, group, columns)
    even = np.rint(steps)
    _fill(top, even + (steps - even == np.float32(0.5)), packed, bits)


@kernel
@also_from_bf16
def _encode_symmetric(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array) -> None:
    """The grid of ± the greatest magnitude of a group; one bit has no positive code, and its grid is −s and 0."""
    half, columns = 1 << bits - 1, values.shape[1]
    low, high, finite = _extremes(values, group)
    scale[...] = np.where(
        finite, (np.maximum(high, -low) / max(half - 1, 1)).astype(DType.parse(stored).numpy), np.float32(np.nan)
    )
    step = _per_column(scale, group, columns)
    steps = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step != 0)) + np.float32(half)
    _fill(2 * half - 1, steps, packed, bits, flip=half)


@kernel
@also_from_bf16
def _encode_signed_bias(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array, bias: Array) -> None:
    """The grid of `encode_scale_bias`, its bias the value of code 0, and the codes nearest to that; a constant has code 0."""
    half, columns = 1 << bits - 1, values.shape[1]
    low, high, finite = _extremes(values, group)
    scale[...] = np.where(finite, ((high - low) / (2 * half - 1)).astype(DType.parse(stored).numpy), np.float32(np.nan))
    bias[...] = np.where(finite, (low + half * scale.astype(np.float64)).astype(DType.parse(stored).numpy), np.float32(0))
    step, origin = _per_column(scale, group, columns), _per_column(bias, group, columns)
    steps = np.rint(np.divide(values - origin, step, out=np.zeros_like(values), where=step != 0)) + np.float32(half)
    _fill(2 * half - 1, steps, packed, bits, flip=half)


# Checked --------------------------------------------------------------------------------------


def _check_groups(packed: Array, bits: int, columns: int, group: int, written: bool, **parts: Array) -> None:
    """A bit stream per row, and a number for each group of columns."""
    check_group(group)
    check("packed", packed, U8, (None, None), written)
    check_stream(bits, columns, packed.shape[1])
    for label, part in parts.items():
        check(label, part, F32, (len(packed), -(-columns // group)), written)


def _check_decoding(packed: Array, bits: int, group: int, out: Array, **parts: Array) -> Array:
    values = check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, **parts)
    check_values(out, (len(packed), None))
    return values


def decode_scale_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    """code · scale + bias per group of columns (the last may be short).

    packed: u8 (rows, nbytes), a bit stream as `unpack_bits` reads it; scale and bias: f32 (rows, groups);
    out: f32 or bf16 (rows, columns).
    """
    values = _check_decoding(packed, bits, group, out, scale=scale, bias=bias)
    _decode_scale_bias.run(packed, bits, scale, bias, group, values)


def decode_scale_zero(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    """(code − zero) · scale, arrays as in `decode_scale_bias`."""
    values = _check_decoding(packed, bits, group, out, scale=scale, zero=zero)
    _decode_scale_zero.run(packed, bits, scale, zero, group, values)


def decode_scale_zero_f16(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    """(code − zero) · scale, rounded to f16, arrays as in `decode_scale_bias` but for out, which is f32."""
    check("out", out, F32, (None, None), written=True)
    _decode_scale_zero_f16.run(
        packed, bits, scale, zero, group, _check_decoding(packed, bits, group, out, scale=scale, zero=zero)
    )


def decode_signed_zero(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    """As `decode_scale_zero`, codes in two's complement, to f32."""
    check("out", out, F32, (None, None), written=True)
    _decode_signed_zero.run(packed, bits, scale, zero, group, _check_decoding(packed, bits, group, out, scale=scale, zero=zero))


def decode_signed_zero_f16(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    """As `decode_scale_zero_f16`, codes in two's complement."""
    check("out", out, F32, (None, None), written=True)
    _decode_signed_zero_f16.run(
        packed, bits, scale, zero, group, _check_decoding(packed, bits, group, out, scale=scale, zero=zero)
    )


def decode_signed_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    """code · scale + bias, codes in two's complement, arrays as in `decode_scale_bias`."""
    values = _check_decoding(packed, bits, group, out, scale=scale, bias=bias)
    _decode_signed_bias.run(packed, bits, scale, bias, group, values)


def decode_symmetric(packed: Array, bits: int, scale: Array, group: int, out: Array) -> None:
    """code · scale, codes in two's complement, arrays as in `decode_scale_bias`."""
    values = _check_decoding(packed, bits, group, out, scale=scale)
    _decode_symmetric.run(packed, bits, scale, group, values)


def _check_encoding(values: Array, bits: int, group: int, stored: str, packed: Array, **parts: Array) -> Array:
    if stored not in STORED:
        raise ValueError(f"scales are stored as {', '.join(STORED)}, not {stored}")
    numbers = check_numbers(values, (None, None))
    check("packed", packed, U8, (len(values), None), written=True)
    _check_groups(packed, bits, values.shape[1], group, True, **parts)
    return numbers


def encode_scale_bias(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array, bias: Array) -> None:
    """The inverse of `decode_scale_bias` by nearest rounding; scale and bias are rounded to the type `stored` first.

    values: f32 or bf16 (rows, columns). A group that is not finite gets a NaN scale.
    """
    numbers = _check_encoding(values, bits, group, stored, packed, scale=scale, bias=bias)
    _encode_scale_bias.run(numbers, bits, group, stored, packed, scale, bias)


def encode_afq(values: Array, bits: int, group: int, packed: Array, scale: Array, bias: Array) -> None:
    """mistral.rs's inverse of `decode_scale_bias`: scale and bias are f32, arrays as in `encode_scale_bias`."""
    numbers = _check_encoding(values, bits, group, "f32", packed, scale=scale, bias=bias)
    _encode_afq.run(numbers, bits, group, packed, scale, bias)


def encode_signed_bias(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array, bias: Array) -> None:
    """The inverse of `decode_signed_bias`, arrays as in `encode_scale_bias`."""
    numbers = _check_encoding(values, bits, group, stored, packed, scale=scale, bias=bias)
    _encode_signed_bias.run(numbers, bits, group, stored, packed, scale, bias)


def encode_symmetric(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array) -> None:
    """The inverse of `decode_symmetric`, arrays as in `encode_scale_bias`."""
    numbers = _check_encoding(values, bits, group, stored, packed, scale=scale)
    _encode_symmetric.run(numbers, bits, group, stored, packed, scale)
