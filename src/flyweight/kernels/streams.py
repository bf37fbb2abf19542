"""Bit streams, casts between float types, and affine codes packed in rows."""

from __future__ import annotations

from collections.abc import Callable

from flyweight.dtypes import DType
from flyweight.kernels.dispatch import F32, U8, U16, Array, check, check_numbers, check_stream, check_values, running

STORED = ("f32", "f16", "bf16")
"""The types a scale may be rounded to when values are encoded."""


def unpack_bits(packed: Array, bits: int, out: Array) -> None:
    """Codes of a little-endian bit stream per row. packed: u8 (rows, nbytes), out: u8 (rows, count)."""
    check("packed", packed, U8, (None, None))
    check("out", out, U8, (len(packed), None), written=True)
    check_stream(bits, out.shape[1], packed.shape[1])
    running["unpack_bits"](packed, bits, out)


def pack_bits(codes: Array, bits: int, out: Array) -> None:
    """A little-endian bit stream per row, zero to the row's end. codes: u8 (rows, count), out: u8 (rows, nbytes)."""
    check("codes", codes, U8, (None, None))
    check("out", out, U8, (len(codes), None), written=True)
    check_stream(bits, codes.shape[1], out.shape[1])
    running["pack_bits"](codes, bits, out)


def _cast(name: str, narrow: DType, narrows: bool) -> Callable[[Array, Array], None]:
    have, want = (DType.F32, narrow) if narrows else (narrow, DType.F32)

    def convert(values: Array, out: Array) -> None:
        check("values", values, have.numpy, (None, None))
        check("out", out, want.numpy, values.shape, written=True)
        running[name](*(array.view(U16) if array.dtype == narrow.numpy else array for array in (values, out)))

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"{have} to {want}, to nearest. values and out: (rows, columns)."
    return convert


bf16_to_f32 = _cast("bf16_to_f32", DType.BF16, narrows=False)
f32_to_bf16 = _cast("f32_to_bf16", DType.BF16, narrows=True)
f16_to_f32 = _cast("f16_to_f32", DType.F16, narrows=False)
f32_to_f16 = _cast("f32_to_f16", DType.F16, narrows=True)


def _check_groups(packed: Array, bits: int, columns: int, group: int, written: bool, **parts: Array) -> None:
    """A bit stream per row, and a number for each group of columns."""
    if group < 1:
        raise ValueError(f"group must be at least 1, not {group}")
    check("packed", packed, U8, (None, None), written)
    check_stream(bits, columns, packed.shape[1])
    for label, part in parts.items():
        check(label, part, F32, (len(packed), -(-columns // group)), written)


def decode_scale_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    """code · scale + bias per group of columns (the last may be short).

    packed: u8 (rows, nbytes), a bit stream as `unpack_bits` reads it; scale and bias: f32 (rows, groups);
    out: f32 or bf16 (rows, columns).
    """
    room = check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, scale=scale, bias=bias)
    check_values(out, (len(packed), None))
    running["decode_scale_bias"](packed, bits, scale, bias, group, room)


def decode_scale_zero(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    """(code − zero) · scale, arrays as in `decode_scale_bias`."""
    room = check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, scale=scale, zero=zero)
    check_values(out, (len(packed), None))
    running["decode_scale_zero"](packed, bits, scale, zero, group, room)


def decode_signed_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    """code · scale + bias, codes in two's complement, arrays as in `decode_scale_bias`."""
    room = check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, scale=scale, bias=bias)
    check_values(out, (len(packed), None))
    running["decode_signed_bias"](packed, bits, scale, bias, group, room)


def decode_symmetric(packed: Array, bits: int, scale: Array, group: int, out: Array) -> None:
    """code · scale, codes in two's complement, arrays as in `decode_scale_bias`."""
    room = check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, scale=scale)
    check_values(out, (len(packed), None))
    running["decode_symmetric"](packed, bits, scale, group, room)


def encode_scale_bias(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array, bias: Array) -> None:
    """The inverse of `decode_scale_bias` by nearest rounding; scale and bias are rounded to the type `stored` first.

    values: f32 or bf16 (rows, columns). A group that is not finite gets a NaN scale.
    """
    numbers = check_numbers(values, (None, None))
    check("packed", packed, U8, (len(values), None), written=True)
    _check_groups(packed, bits, values.shape[1], group, True, scale=scale, bias=bias)
    running["encode_scale_bias"](numbers, bits, group, STORED.index(stored), packed, scale, bias)


def encode_signed_bias(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array, bias: Array) -> None:
    """The inverse of `decode_signed_bias`, arrays as in `encode_scale_bias`."""
    numbers = check_numbers(values, (None, None))
    check("packed", packed, U8, (len(values), None), written=True)
    _check_groups(packed, bits, values.shape[1], group, True, scale=scale, bias=bias)
    running["encode_signed_bias"](numbers, bits, group, STORED.index(stored), packed, scale, bias)


def encode_symmetric(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array) -> None:
    """The inverse of `decode_symmetric`, arrays as in `encode_scale_bias`."""
    numbers = check_numbers(values, (None, None))
    check("packed", packed, U8, (len(values), None), written=True)
    _check_groups(packed, bits, values.shape[1], group, True, scale=scale)
    running["encode_symmetric"](numbers, bits, group, STORED.index(stored), packed, scale)
