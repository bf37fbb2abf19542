"""Floats of eight bits, bytes that stand for any 256 floats, and signs. Values are f32, or bf16 as its bits."""

from __future__ import annotations

from functools import cache

import numpy as np

from flyweight.foundation.dtypes import DType
from flyweight.kernels.checks import F32, F64, U8, Array, check, check_group, check_numbers, check_stream
from flyweight.kernels.coding.masks import pack_flags
from flyweight.kernels.registry import kernel
from flyweight.kernels.streams.float_casts import also_from_bf16

SUM_LANES = 16
E2M1_MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
"""Between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""

F8Q8_TOP = np.float32(416)
"""What mistral.rs takes for the greatest E4M3 number, which is 448: a first byte of 416 is a scale of 1."""


@cache  # made when it is first asked for: not every start needs the package that has the type
def e4m3_values() -> Array:
    """The number that each byte stands for, f32 (1, 256); NaN for 127 and 255."""
    return np.arange(256, dtype=U8).view(DType.F8_E4M3.numpy).astype(F32).reshape(1, 256)


@cache
def f8q8_scales() -> Array:
    """The scale that each first byte of an f8q8 block stands for, f32 (1, 256)."""
    return np.asarray(e4m3_values() / F8Q8_TOP)


@kernel
@also_from_bf16
def _magnitudes(values: Array, group: int, out: Array) -> None:
    """The greatest magnitude of each group of columns, by its bits: a NaN is greater than all numbers."""
    if values.size:
        bits = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
        out.view(np.uint32)[...] = np.maximum.reduceat(bits, np.arange(0, values.shape[1], group), axis=1)


@kernel
@also_from_bf16
def _fp8_codes(values: Array, scale: Array, group: int, divide: bool, wide: bool, out: Array) -> None:
    """The nearest code of w / scale (w · scale with `divide`), ties to even; beyond the greatest, the greatest; NaN is 0x7f.

    Codes are E5M2 with `wide`, else E4M3.
    """
    import ml_dtypes  # not every start needs it

    kind, top = (ml_dtypes.float8_e5m2, 57344) if wide else (ml_dtypes.float8_e4m3fn, 448)
    each = scale[:, np.arange(values.shape[1]) // group]
    with np.errstate(all="ignore"):
        held = np.clip(values * each if divide else values / each, np.float32(-top), np.float32(top))
        out[...] = np.where(np.isnan(held), np.uint8(0x7F), held.astype(kind).view(np.uint8))


@kernel
def _table_decode(codes: Array, table: Array, scale: Array, group: int, out: Array) -> None:
    """out = table[code] · scale, one scale per `group` columns, rounded once."""
    np.multiply(table[0][codes], scale[:, np.arange(codes.shape[1]) // group], out=out)


@kernel
def _f8q8_decode(blocks: Array, scales: Array, out: Array) -> None:
    """out = code · scales[first byte of the block], rounded once."""
    np.multiply(blocks[:, 1:].view(np.int8).astype(np.float32), scales[0][blocks[:, :1]], out=out)


@kernel
def _f8q8_encode(values: Array, first: Array, inverse: Array, blocks: Array) -> None:
    """The first byte of a block as given, then values · inverse to whole numbers, halves away from zero; NaN gives 0."""
    steps = np.clip(np.nan_to_num(values * inverse, nan=0), np.float32(-128), np.float32(127))
    whole = np.trunc(steps)
    whole += np.trunc(np.float32(2) * (steps - whole))
    blocks[:, :1] = first
    blocks[:, 1:] = whole.astype(np.int8).view(np.uint8)


@kernel
def _mxfp4_codes(values: Array, inverse: Array, out: Array) -> None:
    """E2M1 of values · inverse, two in a byte, the first in the low bits: the nearest, the larger of two equally near."""
    steps = values * inverse
    codes = np.searchsorted(E2M1_MIDDLES, np.abs(steps), side="right").astype(np.uint8) | (steps < 0).astype(np.uint8) << 3
    out[...] = codes[:, 0::2] | codes[:, 1::2] << 4


@kernel
@also_from_bf16
def _sign_encode(values: Array, packed: Array, sums: Array) -> None:
    """A bit where a number is 0 or more, and each row's sum of magnitudes in f64: sixteen sums of every sixteenth number,
    then theirs in order."""
    rows, columns = values.shape
    pack_flags(values >= 0, packed)
    padded = np.zeros((rows, -(-columns // SUM_LANES) + 1, SUM_LANES))  # from zero
    padded.reshape(rows, padded.shape[1] * SUM_LANES)[:, SUM_LANES : SUM_LANES + columns] = np.abs(values)
    lanes = np.cumsum(padded, axis=1)[:, -1]
    sums[...] = np.cumsum(lanes, axis=1)[:, -1:]


# Checked --------------------------------------------------------------------------------------


def magnitudes(values: Array, group: int, out: Array) -> None:
    """The greatest magnitude per group of columns (the last may be short), NaN where there is one.

    values: f32 or bf16 (rows, columns), out: f32 (rows, groups).
    """
    check_group(group)
    plain = check_numbers(values, (None, None))
    check("out", out, F32, (len(values), -(-values.shape[1] // group)), written=True)
    _magnitudes.run(plain, group, out)


def fp8_codes(values: Array, scale: Array, group: int, divide: bool, wide: bool, out: Array) -> None:
    """The nearest codes in E4M3, or E5M2 with `wide`; with `divide` the scales are those that decoding divides by.

    values: f32 or bf16 (rows, columns), scale: f32 (rows, groups), out: u8 (rows, columns).
    """
    check_group(group)
    plain = check_numbers(values, (None, None))
    check("scale", scale, F32, (len(values), -(-values.shape[1] // group)))
    check("out", out, U8, values.shape, written=True)
    _fp8_codes.run(plain, scale, group, divide, wide, out)


def f8q8_decode(blocks: Array, scales: Array, out: Array) -> None:
    """Blocks of a byte, which scales[byte] stands for, and 32 codes.

    blocks: u8 (n, 33), scales: f32 (1, 256), out: f32 (n, 32).
    """
    check("blocks", blocks, U8, (None, 33))
    check("scales", scales, F32, (1, 256))
    check("out", out, F32, (len(blocks), 32), written=True)
    _f8q8_decode.run(blocks, scales, out)


def f8q8_encode(values: Array, first: Array, inverse: Array, blocks: Array) -> None:
    """Such blocks. values: f32 (n, 32), first: u8 (n, 1), inverse: f32 (n, 1), blocks: u8 (n, 33)."""
    check("values", values, F32, (None, 32))
    check("first", first, U8, (len(values), 1))
    check("inverse", inverse, F32, (len(values), 1))
    check("blocks", blocks, U8, (len(values), 33), written=True)
    _f8q8_encode.run(values, first, inverse, blocks)


def mxfp4_codes(values: Array, inverse: Array, out: Array) -> None:
    """Codes of blocks in E2M1. values: f32 (n, 32), finite; inverse: f32 (n, 1), out: u8 (n, 16)."""
    check("values", values, F32, (None, 32))
    check("inverse", inverse, F32, (len(values), 1))
    check("out", out, U8, (len(values), 16), written=True)
    _mxfp4_codes.run(values, inverse, out)


def sign_encode(values: Array, packed: Array, sums: Array) -> None:
    """Which numbers are 0 or more, and each row's sum of magnitudes.

    values: f32 or bf16 (rows, columns), packed: u8 (rows, nbytes), low bits first, sums: f64 (rows, 1).
    """
    plain = check_numbers(values, (None, None))
    check("packed", packed, U8, (len(values), None), written=True)
    check_stream(1, values.shape[1], packed.shape[1])
    check("sums", sums, F64, (len(values), 1), written=True)
    _sign_encode.run(plain, packed, sums)


def table_decode(codes: Array, table: Array, scale: Array, group: int, out: Array) -> None:
    """table[code] · scale per group of columns (the last may be short).

    codes: u8 (rows, columns), table: f32 (1, 256), scale: f32 (rows, groups), out: f32 (rows, columns).
    """
    check_group(group)
    check("codes", codes, U8, (None, None))
    rows, columns = codes.shape
    check("table", table, F32, (1, 256))
    check("scale", scale, F32, (rows, -(-columns // group)))
    check("out", out, F32, (rows, columns), written=True)
    _table_decode.run(codes, table, scale, group, out)
