"""The definition of single codecs' kernels, in NumPy: fp8, masks, signs, products of low rank.

Values are f32, or bf16 as its bits, which mean what they widen to.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__: list[str] = []  # named by `flyweight.kernels.KERNELS`

Array = np.ndarray[Any, Any]

SUM_LANES = 16


def _wide(values: Array) -> Array:
    """f32 of f32, or of the bits of bf16."""
    return values if values.dtype == np.float32 else (values.astype(np.uint32) << 16).view(np.float32)


# Floats of eight bits -------------------------------------------------------------------------


def magnitudes(values: Array, group: int, out: Array) -> None:
    """The greatest magnitude of each group of columns, by its bits: a NaN is greater than all numbers."""
    if values.size:
        bits = _wide(values).view(np.uint32) & np.uint32(0x7FFFFFFF)
        out.view(np.uint32)[...] = np.maximum.reduceat(bits, np.arange(0, values.shape[1], group), axis=1)


def fp8_codes(values: Array, scale: Array, group: int, divide: bool, wide: bool, out: Array) -> None:
    """The nearest code of w / scale (w · scale with `divide`), ties to even; beyond the greatest, the greatest; NaN is 0x7f.

    Codes are E5M2 with `wide`, else E4M3.
    """
    kind, top = (ml_dtypes.float8_e5m2, 57344) if wide else (ml_dtypes.float8_e4m3fn, 448)
    each = scale[:, np.arange(values.shape[1]) // group]
    with np.errstate(all="ignore"):
        held = np.clip(_wide(values) * each if divide else _wide(values) / each, np.float32(-top), np.float32(top))
        out[...] = np.where(np.isnan(held), np.uint8(0x7F), held.astype(kind).view(np.uint8))


# Masks ----------------------------------------------------------------------------------------


def _pack(bits: Array, out: Array) -> None:
    out[...] = 0
    out[:, : -(-bits.shape[1] // 8)] = np.packbits(bits, axis=1, bitorder="little")


def _mark(words: Array, keep: int, mask: Array) -> None:
    """A bit, low bits first, where a word has any of the bits `keep`; the rest of a row is zero."""
    _pack(words & words.dtype.type(keep) != 0, mask)


def _gather(mask: Array, words: Array, out: Array) -> None:
    """The words where the mask has a bit, as many as there is room for; room beyond them is zero."""
    found = words[np.unpackbits(mask, axis=1, count=words.shape[1], bitorder="little") != 0][: out.shape[1]]
    out[...] = 0
    out[0, : len(found)] = found


def mark_8(words: Array, keep: int, mask: Array) -> None:
    _mark(words, keep, mask)


def mark_16(words: Array, keep: int, mask: Array) -> None:
    _mark(words, keep, mask)


def mark_32(words: Array, keep: int, mask: Array) -> None:
    _mark(words, keep, mask)


def gather_8(mask: Array, words: Array, out: Array) -> None:
    _gather(mask, words, out)


def gather_16(mask: Array, words: Array, out: Array) -> None:
    _gather(mask, words, out)


def gather_32(mask: Array, words: Array, out: Array) -> None:
    _gather(mask, words, out)


def places(mask: Array, columns: int, out: Array) -> None:
    """row · columns + column of the mask's bits, as many as there is room for; room beyond them is zero."""
    found = np.flatnonzero(np.unpackbits(mask, axis=1, count=columns, bitorder="little"))[: out.shape[1]]
    out[...] = 0
    out[0, : len(found)] = found


def sign_encode(values: Array, packed: Array, sums: Array) -> None:
    """A bit where a number is 0 or more, and each row's sum of magnitudes in f64: sixteen sums of every sixteenth number,
    then theirs in order."""
    wide = _wide(values)
    rows, columns = wide.shape
    _pack(wide >= 0, packed)
    padded = np.zeros((rows, -(-columns // SUM_LANES) + 1, SUM_LANES))  # from zero
    padded.reshape(rows, padded.shape[1] * SUM_LANES)[:, SUM_LANES : SUM_LANES + columns] = np.abs(wide)
    lanes = np.cumsum(padded, axis=1)[:, -1]
    sums[...] = np.cumsum(lanes, axis=1)[:, -1:]


# Low rank -------------------------------------------------------------------------------------


def add_product(left: Array, right: Array, out: Array) -> None:
    """out += left · right, one rank after the other, each product and each sum rounded to f32."""
    for k in range(len(right)):
        out += left[:, k : k + 1] * right[k]
