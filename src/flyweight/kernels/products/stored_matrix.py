"""The rows of a matrix as they are stored, decoded: what a product multiplies by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.kernels.blocks.layout import E2M1_VALUES, half_e8m0
from flyweight.kernels.checks import Array
from flyweight.kernels.coding.byte_floats import e4m3_values, f8q8_scales
from flyweight.kernels.registry import definition
from flyweight.kernels.streams.float_casts import widened
from flyweight.kernels.weaving import STRIP, rotate, rotation_signs, unpack_woven, woven_level


class Stored(Protocol):
    """What a definition reads of `Matrix`."""

    form: str
    parts: tuple[Array, ...]
    rows: int
    columns: int
    length: int


WIDTHS = range(2, 9)
"""Bits of a code of the affine forms."""

STEPPED = {f"stepped{bits}": bits for bits in WIDTHS}
"""Affine forms whose scales and biases are steps of what a row has in common."""

WOVEN = {"woven2": 2, "woven3": 3, "woven4": 4}
"""Forms whose codes count in the rows below too, and their bits."""

ACROSS = {"hqq4": 2, "hqq8": 1}
"""Forms whose groups run across the rows, and the rows that share a byte."""


def _nibbles(codes: Array) -> Array:
    """Two codes a byte, the low one first."""
    return np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)


def _blocks(form: str, columns: int, blocks: Array) -> Array:
    size = GGML_TYPES[form].elements
    values = np.empty((blocks.shape[0] * columns // size, size), np.float32)
    definition(f"decode_{form}")(blocks.reshape(len(values), -1), values)
    return values.reshape(-1, columns)


def _affine(bits: int, codes: Array, scale: Array, bias: Array, length: int = 0) -> Array:
    """In groups of so many columns, or (0) as many as there are scales."""
    values = np.empty((len(codes), codes.shape[1] * 8 // bits), np.float32)
    group = length or (values.shape[1] // scale.shape[1] if scale.shape[1] else 1)
    definition("decode_scale_bias")(np.ascontiguousarray(codes), bits, widened(scale), widened(bias), group, values)
    return values


def _stepped(bits: int, length: int, codes: Array, steps: Array, scale: Array) -> Array:
    columns = codes.shape[1] * 8 // bits
    numbers = np.empty((len(steps), 2 * -(-columns // max(length, 1))), np.uint8)
    definition("unpack_bits")(np.ascontiguousarray(steps), 6, numbers)
    own, wide = numbers.astype(np.float32), widened(scale)
    return _affine(bits, codes, wide[:, :1] * own[:, 0::2], -(wide[:, 1:] * own[:, 1::2]), length)


def _symmetric(codes: Array, scale: Array) -> Array:
    group = codes.shape[1] // scale.shape[1] if scale.shape[1] else 1
    return np.asarray(codes.view(np.int8).astype(np.float32) * np.repeat(widened(scale), group, axis=1))


def _e4m3(codes: Array, scale: Array) -> Array:
    values = np.empty(codes.shape, np.float32)
    definition("table_decode")(codes, e4m3_values(), scale, max(codes.shape[1], 1), values)
    return values


def _e2m1(codes: Array, scale: Array) -> Array:
    return np.asarray(E2M1_VALUES[_nibbles(codes)] * np.repeat(half_e8m0(scale), 32, axis=1))


def _f8q8(blocks: Array) -> Array:
    shape = len(blocks), blocks.shape[1] // 33
    values = np.empty((*shape, 32), np.float32)
    definition("f8q8_decode")(blocks.reshape(-1, 33), f8q8_scales(), values.reshape(-1, 32))
    return values.reshape(shape[0], 32 * shape[1])


def _across(matrix: Stored, rows: Array) -> Array:
    codes, scale, zero = matrix.parts
    bits = 8 // ACROSS[matrix.form]
    which, at = np.divmod(rows, max(len(codes), 1))  # the first rows have the highest bits
    q = (codes[at] >> (8 - bits - bits * which).astype(np.uint8)[:, None] & np.uint8(2**bits - 1)).astype(np.float32)
    group = rows % max(len(scale), 1)
    with np.errstate(all="ignore"):
        return np.asarray((q - widened(zero[group])) * widened(scale[group]))


def woven_rows(matrix: Stored, rows: Array) -> Array:
    """Some rows as they are multiplied with rotated activations."""
    bits, (packed, scale, _) = WOVEN[matrix.form], matrix.parts
    above = np.arange(STRIP - 1, -1, -1)[-(12 // bits) :]  # the rows that each one looks back at, and itself
    at = rows[:, None] - above
    there = (at >= 0) & (at // STRIP == rows[:, None] // STRIP)
    codes = unpack_woven(packed[np.where(there, at, 0).reshape(-1)], bits).reshape(*at.shape, matrix.columns)
    levels = woven_level(np.where(there[:, :, None], codes, 0), bits)
    with np.errstate(all="ignore"):
        return np.asarray(levels.astype(np.float32) * widened(scale[rows]))


def _woven(matrix: Stored, rows: Array) -> Array:
    return np.asarray(rotate(woven_rows(matrix, rows)) * np.float32(0.125) * rotation_signs(matrix.columns))


def _two_bit_codes(codes: Array) -> Array:
    """Four codes a byte, the low one first."""
    return np.stack([codes >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(len(codes), -1)


def _tabled(codes: Array, table: Array, length: int) -> Array:
    """Signed codes, a byte each, and the entries of every row or the pair of all."""
    entries = np.broadcast_to(table, (len(codes), table.shape[1]))
    scale, zero = (np.ascontiguousarray(entries[:, at::4]).view(np.float32) for at in (2, 3))
    values = np.empty(codes.shape, np.float32)
    span = length or max(codes.shape[1], 1)
    definition("decode_signed_bias")(np.ascontiguousarray(codes), 8, scale, zero, span, values)
    return values


DECODERS: dict[str, Callable[..., Array]] = {
    **{f"affine{bits}": partial(_affine, bits) for bits in WIDTHS},
    "symmetric8": _symmetric,
    "e2m1": _e2m1,
    "e4m3": _e4m3,
    "f8q8": _f8q8,
    "palette4": lambda codes, table: table[0][_nibbles(codes)],
    **dict.fromkeys(("f32", "f16", "bf16"), lambda weights, *_: widened(weights)),
}


TABLED: dict[str, Callable[[Array], Array]] = {
    "tabled4": lambda codes: (_nibbles(codes) ^ np.uint8(8)) - np.uint8(8),
    "tabled2": _two_bit_codes,
}


def rows_of(matrix: Stored, rows: slice | Array) -> list[Array]:
    """The parts of some rows. Every part has a row per row of weights, but for a palette's table and a tensor's one pair."""
    shared = matrix.form == "palette4" or (matrix.form in TABLED and not matrix.length)
    return [part if shared and i == 1 else part[rows] for i, part in enumerate(matrix.parts)]


def decode_rows(matrix: Stored, rows: slice | Array) -> Array:
    """Some rows of a matrix as f32. A mask says nothing that the weights do not."""
    if matrix.form in (*ACROSS, *WOVEN):
        return (_across if matrix.form in ACROSS else _woven)(matrix, np.arange(matrix.rows)[rows])
    parts = rows_of(matrix, rows)
    if matrix.form in TABLED:
        return _tabled(TABLED[matrix.form](parts[0]), parts[1], matrix.length)
    if matrix.form in STEPPED:
        return _stepped(STEPPED[matrix.form], matrix.length, *parts)
    if matrix.form in DECODERS:
        return DECODERS[matrix.form](*parts)
    return _blocks(matrix.form, matrix.columns, *parts)
