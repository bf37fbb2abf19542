"""Trellis-coded weights: what a stream of codes stands for, and the codes of least error (docs/formats/woven.md).

Codes of 2, 3 or 4 bits run down a column, in strips of `STRIP` rows. The level of a weight is that of the last twelve bits of
the stream; from the codes of its own row and of those above it is put together by tables of sixteen entries:

    e[r] = code[r], and above its bits the low ones of code[r − 1] as far as four bits go
    h[r] = e[r] ^ S[e[r − apart]]
    level = A[e[r]] + B[h[r]] + C[h[r − step]] + D[h[r] ^ R[h[r − step]]]

A of 2 bits and D of 3 bits are zero: what they would save of the error they would cost in time.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from flyweight.kernels.checks import F32, U8, Array, check
from flyweight.kernels.registry import kernel

__all__ = [
    "STRIP", "TURNED", "UNIT", "WOVEN_TABLES", "pack_woven", "rotate", "rotation_signs", "unpack_woven", "weave",
    "window_levels", "woven_level", "woven_levels",
]  # fmt: skip

F = np.float32

STRIP = 256
"""Rows of a strip. Above its first all codes are zero."""
TURNED = 64
"""Columns that are rotated together."""
UNIT = {2: F(42), 3: F(39), 4: F(32)}
"""Levels to a standard deviation of the values they are made for, which are normally distributed."""
_WINDOW = 12

WOVEN_TABLES: dict[int, Array] = {
    bits: np.array(rows, np.int8)
    for bits, rows in {
        # A, B, C and D, fitted by turns with the codes of normally distributed numbers; S and R, the best of some dozens
        2: (
            (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            (25, 41, -23, -8, -25, 0, -28, 14, -3, -39, 12, 16, -11, -11, 9, 16),
            (24, 27, 13, 8, 26, 11, -14, 7, -23, -11, 5, -6, 15, -31, 14, -34),
            (-41, 12, -13, 50, 17, -6, -12, 70, -10, -3, -27, -1, 20, 29, -65, -43),
            (15, 0, 11, 10, 5, 8, 2, 6, 13, 9, 12, 14, 1, 4, 3, 7),
            (10, 11, 13, 1, 9, 5, 3, 15, 4, 12, 7, 14, 6, 8, 0, 2),
        ),
        3: (
            (46, 12, -4, 8, -33, 5, 20, -26, 7, 14, -11, -9, 14, 0, -8, 15),
            (-13, 32, 27, -37, -1, -21, -2, -22, 47, 45, -4, -14, -17, -37, 21, -27),
            (1, 54, -43, 49, 12, 26, -31, -7, -8, 20, -13, 11, -31, -19, 4, -63),
            (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            (11, 14, 4, 3, 13, 15, 5, 0, 11, 14, 4, 3, 13, 15, 5, 0),
            (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        ),
        4: (
            (13, 20, 21, 31, -2, -5, -29, -21, 21, 2, 15, -1, 9, 11, 3, 16),
            (8, -3, 10, -14, -12, -1, 3, -27, -16, -10, 1, 17, -13, -12, -16, 20),
            (-9, -15, -1, -1, 10, -6, -8, 17, -19, 10, 10, 24, 8, -8, -37, -2),
            (-31, -2, 26, -44, 9, -30, 8, -2, -5, 8, 23, -1, 20, -31, -2, 52),
            (5, 9, 4, 14, 8, 13, 1, 15, 0, 3, 10, 6, 11, 7, 12, 2),
            (15, 0, 12, 1, 7, 10, 8, 4, 2, 14, 9, 3, 5, 11, 13, 6),
        ),
    }.items()
}
"""i8 (6, 16) for each number of bits: A, B, C, D, S and R."""


@cache
def window_levels(bits: int) -> Array:
    """The level of every window, i8 (4096,): the newest code in the low bits, older ones above it."""
    a, b, c, d, s, r = WOVEN_TABLES[bits]
    apart, step = (1, 1) if bits == 4 else (2, 1) if bits == 3 else (2, 2)
    window = np.arange(1 << _WINDOW)
    e = [(window >> bits * row) & 15 for row in range(step + apart + 1)]
    h, before = e[0] ^ s[e[apart]], e[step] ^ s[e[step + apart]]
    return np.asarray(a[e[0]] + b[h] + c[before] + d[h ^ r[before]], np.int8)


def woven_level(codes: Array, bits: int) -> Array:
    """The levels i8 of windows: codes (n, those of a window with the newest last, columns)."""
    window = sum(codes[:, -1 - back].astype(np.uint16) << np.uint16(bits * back) for back in range(_WINDOW // bits))
    return np.asarray(window_levels(bits)[window])


def woven_levels(codes: Array, bits: int) -> Array:
    """The levels i8 of codes (rows, columns) from the first row of a strip on."""
    window = codes.astype(np.uint16)
    for back in range(1, _WINDOW // bits):
        for start in range(0, len(codes), STRIP):
            rows = slice(start + back, min(start + STRIP, len(codes)))
            upper = codes[start : max(rows.stop - back, start)]
            window[rows] |= upper.astype(np.uint16) << np.uint16(bits * back)
    return np.asarray(window_levels(bits)[window])


def unpack_woven(packed: Array, bits: int) -> Array:
    """Codes (rows, columns) of rows of bytes: 32 columns in 4 · bits bytes."""
    runs = packed.reshape(len(packed), packed.shape[1] // (4 * bits), 4 * bits)
    if bits == 4:
        codes = np.concatenate([runs & 15, runs >> 4], axis=2)
    else:
        codes = np.concatenate([runs[:, :, :8] >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    if bits == 3:
        codes |= np.unpackbits(np.ascontiguousarray(runs[:, :, 8:]), axis=2, bitorder="little") << 2
    return np.asarray(codes.reshape(len(packed), 32 * runs.shape[1]))


def pack_woven(codes: Array, bits: int) -> Array:
    runs = codes.reshape(len(codes), codes.shape[1] // 32, 32)
    if bits == 4:
        packed = runs[:, :, :16] | runs[:, :, 16:] << 4
    else:
        low = runs.reshape(*runs.shape[:2], 4, 8) & 3
        packed = low[:, :, 0] | low[:, :, 1] << 2 | low[:, :, 2] << 4 | low[:, :, 3] << 6
    if bits == 3:
        packed = np.concatenate([packed, np.packbits(runs >> 2, axis=2, bitorder="little")], axis=2)
    return np.ascontiguousarray(packed.reshape(len(codes), 4 * bits * runs.shape[1]))


# The rotation: signs, then the matrix of Hadamard over each 64 columns ---------------------------------


def rotation_signs(columns: int) -> Array:
    """f32 (columns,): 1 or −1, by two bits of (column + 1) · 0x9e3779b1."""
    mixed = np.arange(1, columns + 1, dtype=np.uint32) * np.uint32(0x9E3779B1)
    return np.where((mixed >> 31 ^ mixed >> 16) & 1, F(-1), F(1))


def rotate(values: Array) -> Array:
    """Each 64 of the last axis times the matrix of Hadamard, of ±1: whole numbers stay whole, and twice it is 64 times."""
    turned = np.array(values, order="C")
    half = TURNED // 2
    while half:
        pairs = turned.reshape(-1, 2, half)
        first, second = pairs[:, 0].copy(), pairs[:, 1].copy()
        pairs[:, 0], pairs[:, 1] = first + second, first - second
        half //= 2
    return turned


# Codes of least error ----------------------------------------------------------------------------------


@kernel
def _weave(square: Array, linear: Array, strip: int, bits: int, levels: Array, codes: Array, reached: Array) -> None:
    count, options = 1 << _WINDOW, 1 << bits
    for start in range(0, codes.shape[1], strip):
        rows = range(start, min(start + strip, codes.shape[1]))
        costs = np.full(count, F(2.0**100))
        costs[0] = 0
        oldest = np.empty((len(rows), count >> bits), np.uint8)
        for at, row in enumerate(rows):
            some = costs.reshape(options, -1)
            oldest[at] = some.argmin(axis=0)
            best = some.min(axis=0) - costs[0]
            costs = np.repeat(best, options) + levels[0] * (square[0, row] * levels[0] + linear[0, row])
        state = int(costs.argmin())
        for at, row in reversed(list(enumerate(rows))):
            codes[0, row], reached[0, row] = state & options - 1, levels[0, state]
            state = state >> bits | int(oldest[at, state >> bits]) << _WINDOW - bits


def weave(square: Array, linear: Array, strip: int, bits: int, levels: Array, codes: Array, reached: Array) -> None:
    """The codes of a column for which Σ (square · level² + linear · level) is least, strip by strip.

    square, linear: f32 (1, rows), finite and below 2⁶⁰; levels: f32 (1, 4096), those of windows; codes: u8 (1, rows),
    reached: f32 (1, rows), their levels. Of equal paths the one whose oldest codes are the smallest.
    """
    if bits not in WOVEN_TABLES:
        raise ValueError(f"bits must be 2, 3 or 4, not {bits}")
    if not 1 <= strip <= 1 << 12:
        raise ValueError(f"strip must be 1 to 4096, not {strip}")
    check("codes", codes, U8, (1, None), written=True)
    check("square", square, F32, codes.shape)
    check("linear", linear, F32, codes.shape)
    check("reached", reached, F32, codes.shape, written=True)
    check("levels", levels, F32, (1, 1 << _WINDOW))
    _weave.run(square, linear, strip, bits, levels, codes, reached)
