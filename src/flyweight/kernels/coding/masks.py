"""Masks, a bit per column with low bits first: which words are not zero, the words that bits name, and where they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from flyweight.kernels.checks import U8, U16, U32, Array, check, check_stream
from flyweight.kernels.registry import kernel


def pack_flags(flags: Array, out: Array) -> None:
    """A bit for each flag; the rest of a row is zero."""
    out[...] = 0
    out[:, : -(-flags.shape[1] // 8)] = np.packbits(flags, axis=1, bitorder="little")


@kernel
def _mark(words: Array, keep: int, mask: Array) -> None:
    """A bit, low bits first, where a word has any of the bits `keep`; the rest of a row is zero."""
    pack_flags(words & words.dtype.type(keep) != 0, mask)


@kernel
def _gather(mask: Array, words: Array, out: Array) -> None:
    """The words where the mask has a bit, as many as `out` has; what is beyond them is zero."""
    found = words[np.unpackbits(mask, axis=1, count=words.shape[1], bitorder="little") != 0][: out.shape[1]]
    out[...] = 0
    out[0, : len(found)] = found


@kernel
def _expand(mask: Array, values: Array, out: Array) -> None:
    """The k-th set bit of the mask (rows in order, low bits first) takes values[k]; what has none is zero."""
    at = np.flatnonzero(np.unpackbits(mask, axis=1, count=out.shape[1], bitorder="little"))[: values.shape[1]]
    out[...] = 0
    out.reshape(-1)[at] = values[0, : len(at)]


@kernel
def _places(mask: Array, columns: int, out: Array) -> None:
    """row · columns + column of the mask's bits, as many as `out` has; what is beyond them is zero."""
    found = np.flatnonzero(np.unpackbits(mask, axis=1, count=columns, bitorder="little"))[: out.shape[1]]
    out[...] = 0
    out[0, : len(found)] = found


# Checked --------------------------------------------------------------------------------------


def _word(array: Array) -> np.dtype[Any]:
    """The type of words of 8, 16 or 32 bits."""
    known = isinstance(array, np.ndarray) and array.dtype in (U8, U16, U32)
    return array.dtype if known else U8


def mark(words: Array, keep: int, mask: Array) -> None:
    """A bit where a word has any of `keep`. words: u8, u16 or u32 (rows, columns), mask: u8 (rows, nbytes)."""
    word = _word(words)
    check("words", words, word, (None, None))
    if not 0 <= keep < 1 << 8 * word.itemsize:
        raise ValueError(f"keep must be {8 * word.itemsize} bits, not {keep}")
    check("mask", mask, U8, (len(words), None), written=True)
    check_stream(1, words.shape[1], mask.shape[1])
    _mark.run(words, keep, mask)


def gather(mask: Array, words: Array, out: Array) -> None:
    """Words where a mask has a bit, then zeros. mask: u8 (rows, nbytes), words: u8, u16 or u32 (rows, columns), out: (1, n)."""
    word = _word(words)
    check("mask", mask, U8, (None, None))
    check("words", words, word, (len(mask), None))
    check_stream(1, words.shape[1], mask.shape[1])
    check("out", out, word, (1, None), written=True)
    _gather.run(mask, words, out)


def expand(mask: Array, values: Array, out: Array) -> None:
    """Values where a mask has a bit, else 0. mask: u8 (rows, nbytes), values: u8, u16 or u32 (1, n), out: (rows, columns)."""
    word = _word(values)
    check("mask", mask, U8, (None, None))
    check("values", values, word, (1, None))
    check("out", out, word, (len(mask), None), written=True)
    check_stream(1, out.shape[1], mask.shape[1])
    _expand.run(mask, values, out)


def places(mask: Array, columns: int, out: Array) -> None:
    """Where a mask has bits, row · columns + column. mask: u8 (rows, nbytes), out: u32 or i64 (1, n), zero beyond them."""
    check("mask", mask, U8, (None, None))
    if columns < 0:
        raise ValueError(f"columns must be a count, not {columns}")
    check_stream(1, columns, mask.shape[1])
    narrow = isinstance(out, np.ndarray) and out.dtype == np.uint32
    check("out", out, np.dtype(np.uint32 if narrow else np.int64), (1, None), written=True)
    _places.run(mask, columns, out)
