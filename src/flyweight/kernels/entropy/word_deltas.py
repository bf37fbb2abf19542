"""Differences of words of 16 and 32 bits, in the order of the floats they are: a symbol to be coded, and bits as they are.

    o(w)     ~w where the sign is set, else w with the sign set: floats in order are integers in order, −0 just below +0
    d        o(tuned) − o(base), modulo 2^bits; −d where the base is negative, so that d > 0 is a magnitude that grows
    m        |d|; its class is m where m < 2, else 2t + (bit t − 1 of m), t being its highest bit
    symbol   2 · class + (d < 0)
    low      the t − 1 bits of m below those, least significant first, one word after the other; each chunk begins at a byte

Every pair of words has one symbol and low bits, and with the base they give the tuned word back, whatever its bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flyweight.kernels.checks import U8, U64, Array, check
from flyweight.kernels.entropy.rans import RANS_SYMBOLS, check_ends
from flyweight.kernels.registry import kernel

__all__ = ["delta_contexts", "delta_count", "delta_join", "delta_split"]

_WORDS = {np.dtype(np.uint16): 16, np.dtype(np.uint32): 32}


def _ordered(words: Array) -> Array:
    """As int64, from 0."""
    bits = _WORDS[words.dtype]
    wide = words.astype(np.int64)
    return np.where(wide >> (bits - 1), wide ^ (1 << bits) - 1, wide | 1 << (bits - 1))


def _exponents(words: Array, mantissa: int) -> Array:
    return (words.astype(np.int64) & (1 << (_WORDS[words.dtype] - 1)) - 1) >> mantissa & 0xFF


def _differences(base: Array, tuned: Array) -> tuple[Array, Array, Array]:
    """Symbols, low bits, and how many of these there are."""
    bits = _WORDS[base.dtype]
    half = 1 << (bits - 1)
    apart = _ordered(tuned) - _ordered(base)
    apart = (np.where(base.astype(np.int64) >> (bits - 1), -apart, apart) + half) % (1 << bits) - half
    magnitude = np.abs(apart)
    top = np.frexp(np.maximum(magnitude, 1).astype(np.float64))[1].astype(np.int64) - 1
    low_bits = np.maximum(top - 1, 0)
    kind = np.where(magnitude < 2, magnitude, 2 * top + (magnitude >> low_bits & 1))
    return 2 * kind + (apart < 0), np.where(magnitude < 2, 0, magnitude & (1 << low_bits) - 1), low_bits


@kernel
def _delta_count(base: Array, tuned: Array, mantissa: int, counts: Array) -> None:
    symbols = _differences(base[0], tuned[0])[0]
    counts += (
        np.bincount(_exponents(base[0], mantissa) * RANS_SYMBOLS + symbols, minlength=counts.size)
        .reshape(counts.shape)
        .astype(U64)
    )


@kernel
def _delta_split(base: Array, tuned: Array, chunk: int, symbols: Array, low: Array, sizes: Array) -> None:
    each, values, widths = _differences(base[0], tuned[0])
    symbols[0] = each
    for at, first in enumerate(range(0, len(each), chunk)):
        own, width = values[first : first + chunk], widths[first : first + chunk]
        place = np.cumsum(width) - width
        bits = np.zeros(-(-int(width.sum()) // 8) * 8, np.uint8)
        for bit in range(int(width.max(initial=0))):
            bits[place[width > bit] + bit] = own[width > bit] >> bit & 1
        packed = np.packbits(bits, bitorder="little")
        low[at, : len(packed)] = packed
        sizes[0, at] = len(packed)


@kernel
def _delta_contexts(base: Array, map: Array, mantissa: int, contexts: Array) -> None:  # noqa: A002
    contexts[0] = map[0, _exponents(base[0], mantissa)]


@kernel
def _delta_join(base: Array, symbols: Array, low: Array, ends: Array, chunk: int, out: Array, used: Array) -> None:
    bits = _WORDS[base.dtype]
    kind = symbols[0].astype(np.int64) // 2 % (2 * bits)
    widths = np.where(kind < 2, 0, kind // 2 - 1)
    stream = np.append(np.unpackbits(low[0], bitorder="little").astype(np.int64), 0)
    magnitude = np.where(kind < 2, kind, (2 | kind % 2) << widths)
    start = 0
    for at, first in enumerate(range(0, len(kind), chunk)):
        width = widths[first : first + chunk]
        place = 8 * start + np.cumsum(width) - width
        for bit in range(int(width.max(initial=0))):
            found = stream[np.minimum(place + bit, len(stream) - 1)] << bit
            magnitude[first : first + chunk] |= np.where(width > bit, found, 0)
        used[0, at] = -(-int(width.sum()) // 8)
        start = int(ends[0, at])
    falls = (symbols[0] & 1) != base[0].astype(np.int64) >> (bits - 1)
    ordered = (_ordered(base[0]) + np.where(falls, -magnitude, magnitude)) % (1 << bits)
    out[0] = np.where(ordered >> (bits - 1), ordered ^ 1 << (bits - 1), ordered ^ (1 << bits) - 1)


def _check_words(label: str, words: Array, like: Array | None = None, written: bool = False) -> None:
    if not isinstance(words, np.ndarray) or words.dtype not in _WORDS:
        raise TypeError(f"{label} must be words of 16 or 32 bits, not {getattr(words, 'dtype', type(words).__name__)}")
    check(label, words, like.dtype if like is not None else words.dtype, (1, None if like is None else like.shape[1]), written)


def _check_mantissa(mantissa: Any, words: Array) -> None:
    if not 0 <= mantissa < _WORDS[words.dtype]:
        raise ValueError(f"a mantissa of {mantissa} bits does not fit the words")


def _chunks(words: Array, chunk: int) -> int:
    if chunk < 1:
        raise ValueError(f"a chunk has at least one word, not {chunk}")
    return int(-(-words.shape[1] // chunk))


def delta_count(base: Array, tuned: Array, mantissa: int, counts: Array) -> None:
    """Add to counts, u64 (256, 256), how often each symbol occurs at each exponent of the base; words: u16 or u32 (1, n)."""
    _check_words("base", base)
    _check_words("tuned", tuned, base)
    _check_mantissa(mantissa, base)
    check("counts", counts, U64, (256, RANS_SYMBOLS), written=True)
    _delta_count.run(base, tuned, mantissa, counts)


def delta_split(base: Array, tuned: Array, chunk: int, symbols: Array, low: Array, sizes: Array) -> None:
    """The symbol of each word, u8 (1, n), and the low bits of each chunk: sizes[0, c] bytes at the front of row c of `low`.

    low: u8 (chunks, chunk · bytes of a word), of which the rest stays as it is; sizes: u64 (1, chunks).
    """
    _check_words("base", base)
    _check_words("tuned", tuned, base)
    chunks = _chunks(base, chunk)
    check("symbols", symbols, U8, base.shape, written=True)
    check("low", low, U8, (chunks, chunk * base.itemsize), written=True)
    check("sizes", sizes, U64, (1, chunks), written=True)
    _delta_split.run(base, tuned, chunk, symbols, low, sizes)


def delta_contexts(base: Array, map: Array, mantissa: int, contexts: Array) -> None:  # noqa: A002
    """map[0, exponent] for every word; map: u8 (1, 256), contexts: u8 (1, n)."""
    _check_words("base", base)
    check("map", map, U8, (1, 256))
    _check_mantissa(mantissa, base)
    check("contexts", contexts, U8, base.shape, written=True)
    _delta_contexts.run(base, map, mantissa, contexts)


def delta_join(base: Array, symbols: Array, low: Array, ends: Array, chunk: int, out: Array, used: Array) -> None:
    """The tuned words. The low bits of the chunks, u8 (1, total), end at `ends`, u64 (1, chunks); a bit behind them is zero.

    used, u64 (1, chunks): the bytes of low bits that each chunk took, as many as it has if they are as they were written.
    """
    _check_words("base", base)
    check("symbols", symbols, U8, base.shape)
    check("low", low, U8, (1, None))
    chunks = _chunks(base, chunk)
    check_ends(ends, chunks, low.shape[1])
    _check_words("out", out, base, written=True)
    check("used", used, U64, (1, chunks), written=True)
    _delta_join.run(base, symbols, low, ends, chunk, out, used)
