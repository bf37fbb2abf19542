"""Masks, a bit per column with low bits first: which words are not zero, the words that bits name, and where they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flyweight.kernels.checks import U8, Array, check, check_stream
from flyweight.kernels.registry import kernel


def pack_flags(flags: Array, out: Array) -> None:
    """A bit for each flag; the rest of a row is zero."""
    out[...] = 0
    out[:, : -(-flags.shape[1] // 8)] = np.packbits(flags, axis=1, bitorder="little")


def _mark(words: Array, keep: int, mask: Array) -> None:
    """A bit, low bits first, where a word has any of the bits `keep`; the rest of a row is zero."""
    pack_flags(words & words.dtype.type(keep) != 0, mask)


def _gather(mask: Array, words: Array, out: Array) -> None:
    """The words where the mask has a bit, as many as `out` has; what is beyond them is zero."""
    found = words[np.unpackbits(mask, axis=1, count=words.shape[1], bitorder="little") != 0][: out.shape[1]]
    out[...] = 0
    out[0, : len(found)] = found


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


def _marker(bits: int) -> Callable[[Array, int, Array], None]:
    registered, word = kernel(_mark, f"mark_{bits}"), np.dtype(f"<u{bits // 8}")

    def mark(words: Array, keep: int, mask: Array) -> None:
        check("words", words, word, (None, None))
        if not 0 <= keep < 1 << bits:
            raise ValueError(f"keep must be {bits} bits, not {keep}")
        check("mask", mask, U8, (len(words), None), written=True)
        check_stream(1, words.shape[1], mask.shape[1])
        registered.run(words, keep, mask)

    mark.__name__ = mark.__qualname__ = registered.name
    mark.__doc__ = f"A bit where a word has any of `keep`. words: u{bits} (rows, columns), mask: u8 (rows, nbytes)."
    return mark


def _gatherer(bits: int) -> Callable[[Array, Array, Array], None]:
    registered, word = kernel(_gather, f"gather_{bits}"), np.dtype(f"<u{bits // 8}")

    def gather(mask: Array, words: Array, out: Array) -> None:
        check("mask", mask, U8, (None, None))
        check("words", words, word, (len(mask), None))
        check_stream(1, words.shape[1], mask.shape[1])
        check("out", out, word, (1, None), written=True)
        registered.run(mask, words, out)

    gather.__name__ = gather.__qualname__ = registered.name
    gather.__doc__ = (
        f"Words where a mask has a bit, then zeros. mask: u8 (rows, nbytes), words: u{bits} (rows, columns), out: (1, n)."
    )
    return gather


mark_8, mark_16, mark_32 = map(_marker, (8, 16, 32))
gather_8, gather_16, gather_32 = map(_gatherer, (8, 16, 32))


def places(mask: Array, columns: int, out: Array) -> None:
    """Where a mask has bits, row · columns + column. mask: u8 (rows, nbytes), out: u32 or i64 (1, n), zero beyond them."""
    check("mask", mask, U8, (None, None))
    if columns < 0:
        raise ValueError(f"columns must be a count, not {columns}")
    check_stream(1, columns, mask.shape[1])
    narrow = isinstance(out, np.ndarray) and out.dtype == np.uint32
    check("out", out, np.dtype(np.uint32 if narrow else np.int64), (1, None), written=True)
    _places.run(mask, columns, out)


def _expander(bits: int) -> Callable[[Array, Array, Array], None]:
    registered, word = kernel(_expand, f"expand_{bits}"), np.dtype(f"<u{bits // 8}")

    def expand(mask: Array, values: Array, out: Array) -> None:
        check("mask", mask, U8, (None, None))
        check("values", values, word, (1, None))
        check("out", out, word, (len(mask), None), written=True)
        check_stream(1, out.shape[1], mask.shape[1])
        registered.run(mask, values, out)

    expand.__name__ = expand.__qualname__ = registered.name
    expand.__doc__ = (
        f"Values where a mask has a bit, else zero. mask: u8 (rows, nbytes), values: u{bits} (1, n), out: (rows, columns)."
    )
    return expand


expand_8, expand_16, expand_32 = map(_expander, (8, 16, 32))
