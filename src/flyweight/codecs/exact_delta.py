"""A tensor as its difference from another of the same words, bit for bit: ordered differences, coded by their entropy.

    contexts   u8 (256): which table codes a difference, by the exponent of the base
    tables     u8: for each table the frequencies of symbols 0, 1, 2 … as LEB128, until they are 4096 in all
    states, ends, words       the symbols, in chunks (`entropy_coded`)
    low_ends, low             u64 (chunks) and u8: the bits below the symbols (`kernels.entropy.word_deltas`)

Small weights differ by more steps than large ones: the exponent of the base, which both sides have, says what to expect, and
neighbouring exponents share a table where a table of their own would cost more than it saves. A chunk is decoded without the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs.codec import Array
from flyweight.codecs.entropy_coded import CHUNK, Coded, chunks_of, encode_symbols, frequencies_of, require_decoded, tables_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError

MANTISSAS = {DType.BF16: 7, DType.F16: 10, DType.F32: 23}
"""The element types whose differences are taken, and the bits of their mantissa."""
_SYMBOL_BITS = 10
"""What a symbol in one more table costs: a frequency takes one byte or two."""


class ExactDelta(NamedTuple):
    """The difference as it is stored."""

    contexts: Array
    tables: Array
    coded: Coded
    low_ends: Array
    low: Array

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.contexts, self.tables, *self.coded, self.low_ends, self.low))


def encode_exact(base: Array, tuned: Array, dtype: DType) -> ExactDelta:
    """The difference of two arrays of words, u16 or u32 (1, n). Beside what is stored it takes the memory of a few chunks."""
    mantissa = MANTISSAS[dtype]
    counts = np.zeros((256, 256), np.uint64)
    for piece in _chunks(base):
        kernels.delta_count(base[:, piece], tuned[:, piece], mantissa, counts)
    contexts = _contexts(counts)
    merged = np.zeros((int(contexts.max()) + 1, 256), np.uint64)
    np.add.at(merged, contexts, counts)
    frequencies = frequencies_of(merged)

    states, words, low = ([np.zeros((0, *shape), kind)] for shape, kind in (((32,), "u4"), ((), "u2"), ((), "u1")))
    ends, low_ends = np.zeros((2, chunks_of(base.shape[1])), np.uint64)
    rest = np.empty((1, CHUNK * base.itemsize), np.uint8)
    size = np.empty((1, 1), np.uint64)
    for at, piece in enumerate(_chunks(base)):
        own = np.ascontiguousarray(base[:, piece])
        symbols, tables = np.empty(own.shape, np.uint8), np.empty(own.shape, np.uint8)
        kernels.delta_split(own, np.ascontiguousarray(tuned[:, piece]), CHUNK, symbols, rest, size)
        kernels.delta_contexts(own, contexts.reshape(1, 256), mantissa, tables)
        coded = encode_symbols(symbols, tables, frequencies)
        states.append(coded.states)
        words.append(coded.words)
        low.append(rest[0, : int(size[0, 0])].copy())
        ends[at], low_ends[at] = len(coded.words), len(low[-1])
    stored = Coded(np.concatenate(states), np.cumsum(ends, dtype=np.uint64), np.concatenate(words))
    return ExactDelta(contexts, _written(frequencies), stored, np.cumsum(low_ends, dtype=np.uint64), np.concatenate(low))


def decode_exact(base: Array, delta: ExactDelta, dtype: DType, out: Array) -> None:
    """The tuned words into `out`, like the base u16 or u32 (1, n). MalformedError if the parts do not agree."""
    mantissa, tables = MANTISSAS[dtype], tables_of(_read(delta.tables, int(delta.contexts.max()) + 1))
    for at, piece in enumerate(_chunks(base)):
        own, result = np.ascontiguousarray(base[:, piece]), out[:, piece]
        symbols, contexts = np.empty(own.shape, np.uint8), np.empty(own.shape, np.uint8)
        kernels.delta_contexts(own, delta.contexts.reshape(1, 256), mantissa, contexts)
        states, words = delta.coded.states[at : at + 1], _part(delta.coded.words, delta.coded.ends, at)
        finals, taken, used = np.empty_like(states), np.empty((1, 1), np.uint64), np.empty((1, 1), np.uint64)
        end = np.full((1, 1), words.shape[1], np.uint64)
        kernels.rans_decode(states, words, end, contexts, tables, CHUNK, symbols, finals, taken)
        require_decoded(finals, taken, end)
        low = _part(delta.low, delta.low_ends, at)
        end = np.full((1, 1), low.shape[1], np.uint64)
        kernels.delta_join(own, symbols, low, end, CHUNK, result, used)
        if used[0, 0] != end[0, 0] or int(symbols.max()) >= 4 * 8 * own.itemsize:
            raise MalformedError("the low bits do not end where their chunk does", code="E_PART_VALUES")


def _chunks(words: Array) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, words.shape[1], CHUNK))


def _part(stream: Array, ends: Array, at: int) -> Array:
    """What belongs to one chunk, (1, n). MalformedError if chunks do not lie behind one another."""
    start, stop = int(ends[at - 1]) if at else 0, int(ends[at])
    if not start <= stop <= len(stream):
        raise MalformedError("the chunks do not lie behind one another", code="E_PART_VALUES")
    return np.ascontiguousarray(stream[start:stop]).reshape(1, -1)


def _contexts(counts: Array) -> Array:
    """The table for each exponent: of all ways to cut the exponents into at most 16 runs the one of least bits."""
    present = np.flatnonzero(counts.sum(1))
    contexts = np.zeros(256, np.uint8)
    if not len(present):
        return contexts
    sums = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts[present].astype(np.float64), axis=0)])
    count = len(present)
    cost = np.full((count + 1, count + 1), np.inf)
    for first in range(count):
        cost[first, first + 1 :] = _bits(sums[first + 1 :] - sums[first])
    best, cuts = cost[0].copy(), []
    best[0] = 0.0
    for _ in range(min(count, kernels.RANS_CONTEXTS) - 1):
        through = best[:, None] + cost
        before = through.argmin(0)
        better = through[before, np.arange(count + 1)]
        cuts.append(np.where(better < best, before, -1))
        best = np.minimum(best, better)
    stop, number = count, kernels.RANS_CONTEXTS - 1
    for before in reversed(cuts):
        if before[stop] > 0:
            contexts[present[before[stop] : stop]] = number
            stop, number = int(before[stop]), number - 1
    contexts[present[:stop]] = number
    contexts[present] -= number
    return contexts


def _bits(counts: Array) -> Array:
    """Of each row of counts: its entropy, and what its table takes."""
    total = counts.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        coded = np.where(counts > 0, counts * np.log2(total / counts), 0.0).sum(1)
    return np.asarray(coded + _SYMBOL_BITS * (counts > 0).sum(1))


def _written(frequencies: Array) -> Array:
    stream = bytearray()
    for table in frequencies.tolist():
        for frequency in table[: max(at for at, each in enumerate(table) if each) + 1]:
            stream += bytes([frequency]) if frequency < 128 else bytes([frequency & 127 | 128, frequency >> 7])
    return np.frombuffer(bytes(stream), np.uint8)


def _read(stream: Array, count: int) -> Array:
    """MalformedError unless the stream is the frequencies of so many tables, and nothing else."""
    frequencies = np.zeros((count, 256), np.uint16)
    values: Iterator[Any] = iter(stream.tolist())
    try:
        for table in frequencies:
            total = symbol = 0
            while total < kernels.RANS_SLOTS:
                byte = next(values)
                frequency = byte if byte < 128 else byte & 127 | next(values) << 7
                table[symbol] = frequency
                total, symbol = total + frequency, symbol + 1
    except (StopIteration, IndexError, OverflowError):
        raise MalformedError("the tables of frequencies end too early, or are too long", code="E_PART_VALUES") from None
    if next(values, None) is not None:
        raise MalformedError("there is more than the tables of frequencies", code="E_PART_VALUES")
    return frequencies
