"""Symbols in chunks of 2¹⁷ by the entropy coder: frequencies from counts, states and words from symbols, and back.

frequencies   u16, 4096 in all for each table
states        u32 (chunks, 32)
ends          u64 (chunks): where the words of each chunk end
words         u16
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs.codec import Array
from flyweight.foundation.errors import DAMAGED, MalformedError

CHUNK = 1 << 17
_DONE = 1 << 16


class Coded(NamedTuple):
    """Symbols as they are stored."""

    states: Array
    ends: Array
    words: Array


def chunks_of(count: int) -> int:
    return -(-count // CHUNK)


def frequencies_of(counts: Array) -> Array:
    """Counts of symbols, (tables, symbols), as frequencies, u16 (tables, 256): 4096 in all, at least 1 for what occurs.

    A slot more is worth most where counts / frequency is greatest, so slots are given out, or taken back, one by one in that
    order; a table without counts has all slots on its first symbol.
    """
    frequencies = np.zeros((len(counts), 256), np.uint16)
    for row, own in zip(frequencies, np.asarray(counts, np.float64), strict=True):
        total = own.sum()
        if not total:
            row[0] = kernels.RANS_SLOTS
            continue
        present = np.flatnonzero(own)
        given = np.maximum(np.floor(own[present] * (kernels.RANS_SLOTS / total)), 1).astype(np.int64)
        while (missing := kernels.RANS_SLOTS - int(given.sum())) > 0:
            best = np.argsort(-(own[present] / given), kind="stable")[:missing]
            given[best] += 1
        while (over := int(given.sum()) - kernels.RANS_SLOTS) > 0:
            least = np.where(given > 1, own[present] / np.maximum(given - 1, 1), np.inf)
            given[np.argsort(least, kind="stable")[: min(over, int((given > 1).sum()))]] -= 1
        row[present] = given
    return frequencies


def tables_of(frequencies: Array) -> Array:
    """MalformedError if the frequencies of a table are not 4096 in all."""
    try:
        return kernels.rans_tables(np.ascontiguousarray(frequencies, np.uint16))
    except ValueError as error:
        raise MalformedError(str(error), code="E_PART_VALUES") from None


def encode_symbols(symbols: Array, contexts: Array | None, frequencies: Array) -> Coded:
    """Symbols, u8 (1, n), coded a chunk at a time: what is not stored never takes more than a chunk."""
    count = symbols.shape[1]
    states = np.empty((chunks_of(count), kernels.RANS_STATES), np.uint32)
    ends, streams = np.zeros(len(states), np.uint64), [np.zeros(0, np.uint16)]
    words, length = np.empty((1, CHUNK), np.uint16), np.empty((1, 1), np.uint64)
    for at in range(len(states)):
        piece = slice(at * CHUNK, (at + 1) * CHUNK)
        own = None if contexts is None else contexts[:, piece]
        kernels.rans_encode(symbols[:, piece], own, frequencies, CHUNK, states[at : at + 1], words, length)
        streams.append(words[0, CHUNK - int(length[0, 0]) :].copy())
        ends[at] = (ends[at - 1] if at else 0) + length[0, 0]
    return Coded(states, ends, np.concatenate(streams))


def require_decoded(finals: Array, taken: Array, ends: Array) -> None:
    """MalformedError unless every chunk ended as it was begun."""
    if (finals != _DONE).any() or not np.array_equal(taken.reshape(-1), np.diff(ends.reshape(-1), prepend=np.uint64(0))):
        raise MalformedError(
            "its coded exponents are damaged: a chunk does not end where it should", code="E_PART_VALUES", hint=DAMAGED
        )
