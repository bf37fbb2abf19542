"""`exact`: an array as its difference from the base, bit for bit, coded by its entropy.

    coding "words"   bf16, f16, f32: differences in the order of the floats (`kernels.entropy.word_deltas`)
        drift    in the header, of f32, if it is not 0: so many cells of the base are moved (`deltas.drift`)
        tables   u8: the drift; the number of the table for each exponent of the base (256); the frequencies of symbols 0, 1, 2
                 … of each table as LEB128, until they are 4096 in all
        chunks   u8: for each chunk u32, its words; 32 states, u32; the words, u16; the bits below the symbols
        ends     u64: where each chunk ends; one that is as in the base has no bytes
    coding "xor"     everything else: bytes of the array xor bytes of the base, `tables` of one table and no exponents, `chunks`
                     without bits, `ends`, as above; a chunk has CHUNK bytes
    coding "bytes"   the same of the array alone, where the base tells nothing of it
    coding "plain"   the array alone: `chunks`

Small weights differ by more steps than large ones: the exponent of the base, which both sides have, says what to expect, and
neighbouring exponents share a table where a table of their own would cost more than it saves. A chunk is decoded without the
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs.entropy_coded import CHUNK, chunks_of, encode_symbols, frequencies_of, require_decoded, tables_of
from flyweight.deltas.drift import CELL_NBYTES, MAX_CELLS, NO_DRIFT, Drift, find_drift
from flyweight.deltas.in_order import in_order
from flyweight.deltas.kind import Array, Elements, Kind, Record, StoredArray, ranges, require
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.tensor import TensorSpec

_MANTISSAS = {DType.BF16: 7, DType.F16: 10, DType.F32: 23}
"""The element types whose differences are taken, and the bits of their mantissa."""
_SYMBOL_BITS = 10
"""What a symbol in one more table costs: a frequency takes one byte or two."""
_TOGETHER = 2
"""Chunks that are decoded in one call: the kernel alternates between two."""
_COUNTED = 8
"""Chunks whose symbols are counted in one table."""
_HEAD = 4 + 4 * kernels.RANS_STATES
_LONGEST = _HEAD + 2 * CHUNK + 4 * CHUNK
"""Of a chunk: no symbol takes more than a word, and no element has more than four bytes of bits below its symbol."""
_U1, _U2, _U4 = np.dtype("u1"), np.dtype("<u2"), np.dtype("<u4")


class ExactDelta(Kind):
    strategy = "exact"
    fields = {"tables": ("uint8",), "chunks": ("uint8",), "ends": ("uint64",)}

    def __init__(self, spec: TensorSpec, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super().__init__(spec, about, arrays)
        self.coding = about.get("coding")
        self.mantissa = _MANTISSAS.get(spec.dtype, 0) if self.coding == "words" else 0
        require(
            self.coding in ("xor", "bytes", "plain") or bool(self.mantissa), f"{spec} is not coded as {str(self.coding)[:20]!r}"
        )
        units = 0 if self.coding == "plain" else chunks_of(spec.size if self.mantissa else spec.nbytes)
        require(len(arrays["ends"]) == units, f"there are {len(arrays['ends'])} chunks, not {units}")
        self._cells = about.get("drift", 0)
        drifts = self.mantissa and spec.dtype is DType.F32
        require(
            type(self._cells) is int and 0 <= self._cells <= (MAX_CELLS if drifts else 0), "its drift is not a number of cells"
        )
        tables = len(arrays["tables"]) - self._cells * CELL_NBYTES
        require(0 <= tables <= 256 + 512 * kernels.RANS_CONTEXTS, "its tables are too short or too long")
        if self.coding == "plain":
            require(len(arrays["chunks"]) == spec.nbytes, f"there are {len(arrays['chunks'])} bytes, not {spec.nbytes}")

    @cached_property
    def _ends(self) -> Array:
        ends = np.array(self.arrays["ends"][:], np.uint64)
        rising = bool((ends[1:] >= ends[:-1]).all())
        require(
            rising and (int(ends[-1]) if len(ends) else 0) == len(self.arrays["chunks"]), "its chunks do not follow each other"
        )
        return ends

    @cached_property
    def _tables(self) -> tuple[Array, Array]:
        """Which table each exponent has, and the tables."""
        stream = self.arrays["tables"][self._cells * CELL_NBYTES :]
        contexts, stream = (stream[:256], stream[256:]) if self.mantissa else (np.zeros(256, np.uint8), stream)
        require(
            len(contexts) == 256 and int(contexts.max()) < kernels.RANS_CONTEXTS, "its tables are not those of 256 exponents"
        )
        return np.ascontiguousarray(contexts).reshape(1, 256), tables_of(_read(stream, int(contexts.max()) + 1))

    @cached_property
    def _drift(self) -> Drift:
        return Drift.read(self.arrays["tables"][: self._cells * CELL_NBYTES])

    def rebuild(self, start: int, stop: int, base: Array, out: Array) -> None:
        """Bytes are at hand for every element, so ranges of elements are ranges of bytes that begin at a chunk, too."""
        if self.coding == "plain":
            first, last = (self.spec.dtype.nbytes(at) for at in (start, stop))
            out.view(_U1)[...] = self.arrays["chunks"][first:last]
        elif self.mantissa:
            self._rebuild(start // CHUNK, _words(base, self.spec.dtype), _words(out, self.spec.dtype))
        else:
            before = base.view(_U1) if self.coding == "xor" else np.zeros(out.nbytes, np.uint8)
            self._rebuild(self.spec.dtype.nbytes(start) // CHUNK, before, out.view(_U1))

    def _rebuild(self, first: int, base: Array, out: Array) -> None:
        # Made once: memory that the system has to clear first costs as much as a kernel.
        most = min(len(out), _TOGETHER * CHUNK)
        symbols, contexts = np.empty(most, np.uint8), np.empty(most, np.uint8)
        for numbers in self._runs(first, first + chunks_of(len(out))):
            where = slice((numbers.start - first) * CHUNK, (numbers.stop - first) * CHUNK)
            own, result = base[where].reshape(1, -1), out[where].reshape(1, -1)
            if not self._is_stored(numbers.start):
                result[...] = own
                continue
            moved = np.require(self._drift.moved(own) if self.mantissa else own, requirements=["C", "A"])
            self._decode(numbers, moved, result, *(buffer[: own.size].reshape(1, -1) for buffer in (symbols, contexts)))

    def _runs(self, first: int, stop: int) -> Iterator[range]:
        """Chunks to be decoded in one call, or one that is as in the base."""
        while first < stop:
            end = first + 1
            while end < min(stop, first + _TOGETHER) and self._is_stored(first) and self._is_stored(end):
                end += 1
            yield range(first, end)
            first = end

    def _begin(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    def _is_stored(self, number: int) -> bool:
        return self._begin(number) < self._begin(number + 1)

    def _decode(self, numbers: range, base: Array, out: Array, symbols: Array, contexts: Array) -> None:
        chunks = [_taken_apart(self.arrays["chunks"][self._begin(at) : self._begin(at + 1)]) for at in numbers]
        states = np.array([chunk.states for chunk in chunks], np.uint32)
        words, word_ends = _behind_one_another([chunk.words for chunk in chunks], np.uint16)
        low, low_ends = _behind_one_another([chunk.low for chunk in chunks], np.uint8)
        exponents, tables = self._tables
        if self.mantissa:
            kernels.delta_contexts(base, exponents, self.mantissa, contexts)
        finals, taken = np.empty_like(states), np.empty_like(word_ends)
        kernels.rans_decode(
            states, words, word_ends, contexts if self.mantissa else None, tables, CHUNK, symbols, finals, taken
        )
        require_decoded(finals, taken, word_ends)
        if not self.mantissa:
            require(not low.size, "a chunk does not end where it should")
            np.bitwise_xor(base, symbols, out=out)
            return
        kernels.delta_join(base, symbols, low, low_ends, CHUNK, out, taken)
        if not np.array_equal(taken.cumsum(), low_ends[0]) or int(symbols.max()) >= 4 * 8 * base.itemsize:
            raise MalformedError("the low bits do not end where their chunk does", code="E_PART_VALUES")

    @classmethod
    def make(
        cls, base: Elements, tuned: Elements, spec: TensorSpec, about: dict[str, Any], **_options: Any
    ) -> Iterator[Record]:
        if spec.dtype in _MANTISSAS:
            about["coding"] = "words"
            yield from _make_words(base, tuned, spec, about)
        else:
            yield from _make_bytes(base, tuned, spec, about)


def _words(array: Array, dtype: DType) -> Array:
    return array.view(np.uint16 if dtype.bits == 16 else np.uint32)


class _Chunk(NamedTuple):
    """Of a stored chunk; what has more than a byte may lie anywhere."""

    states: Array
    words: Array
    low: Array


def _taken_apart(chunk: Array) -> _Chunk:
    require(_HEAD <= len(chunk) <= _LONGEST, "a chunk is too short or too long")
    end = _HEAD + 2 * int(chunk[:4].view(_U4)[0])
    require(end <= len(chunk), "a chunk has fewer words than it says")
    return _Chunk(chunk[4:_HEAD].view(_U4), chunk[_HEAD:end].view(_U2), chunk[end:])


def _behind_one_another(arrays: list[Array], dtype: type) -> tuple[Array, Array]:
    """One array of them all, (1, n), and where each ends, u64 (1, arrays)."""
    ends = np.cumsum([len(array) for array in arrays], dtype=np.uint64)
    return np.concatenate(arrays, dtype=dtype).reshape(1, -1), ends.reshape(1, -1)


def _chunk(states: Array, words: Array, low: Array) -> Array:
    raw = len(words).to_bytes(4, "little") + states.astype(_U4).tobytes() + words.astype(_U2).tobytes() + low.tobytes()
    return np.frombuffer(raw, np.uint8)


def _records(tables: Array, chunks: Iterator[Array]) -> Iterator[Record]:
    """The three records, the last of which is known when the second has been taken."""
    ends = [0]

    def counted() -> Iterator[Array]:
        for chunk in chunks:
            ends.append(ends[-1] + len(chunk))
            yield chunk

    yield Record("tables", "uint8", [tables])
    yield Record("chunks", "uint8", counted())
    yield Record("ends", "uint64", [np.array(ends[1:], np.uint64)])


def _make_words(base: Elements, tuned: Elements, spec: TensorSpec, about: dict[str, Any]) -> Iterator[Record]:
    mantissa = _MANTISSAS[spec.dtype]
    drift = find_drift(base, tuned, spec.size) if spec.dtype is DType.F32 else NO_DRIFT
    about |= {"drift": drift.cells} if drift.cells else {}

    def pair(where: tuple[int, int]) -> tuple[Array, Array]:
        own, other = (_words(np.ascontiguousarray(read(*where)), spec.dtype).reshape(1, -1) for read in (base, tuned))
        return own, other

    def count(where: tuple[int, int]) -> Array:
        counts = np.zeros((256, 256), np.uint64)
        for start in range(*where, CHUNK):
            own, other = pair((start, min(start + CHUNK, where[1])))
            if not np.array_equal(own, other):
                kernels.delta_count(drift.moved(own), other, mantissa, counts)
        return counts

    counts = np.zeros((256, 256), np.uint64)
    for some in in_order(count, ranges(spec.size, _COUNTED)):
        counts += some
    contexts = _contexts(counts)
    frequencies = frequencies_of(np.array([counts[contexts == table].sum(0) for table in range(int(contexts.max()) + 1)]))

    def encode(where: tuple[int, int]) -> Array:
        own, other = pair(where)
        if np.array_equal(own, other):
            return np.zeros(0, np.uint8)
        own = drift.moved(own)
        symbols, tables = np.empty(own.shape, np.uint8), np.empty(own.shape, np.uint8)
        rest, size = np.empty((1, CHUNK * own.itemsize), np.uint8), np.empty((1, 1), np.uint64)
        kernels.delta_split(own, other, CHUNK, symbols, rest, size)
        kernels.delta_contexts(own, contexts.reshape(1, 256), mantissa, tables)
        coded = encode_symbols(symbols, tables, frequencies)
        return _chunk(coded.states, coded.words, rest[0, : int(size[0, 0])])

    tables = np.concatenate([drift.stored, contexts, _written(frequencies)])
    yield from _records(tables, in_order(encode, ranges(spec.size)))


def _make_bytes(base: Elements, tuned: Elements, spec: TensorSpec, about: dict[str, Any]) -> Iterator[Record]:
    """Whichever is smallest by the counts of its bytes."""

    def pieces(xor: bool) -> Iterator[Array]:
        """CHUNK bytes at a time."""
        for start, stop in ranges(spec.size):
            other = np.ascontiguousarray(tuned(start, stop)).view(_U1)
            if xor:
                other = other ^ np.ascontiguousarray(base(start, stop)).view(_U1)
            yield from (other[at : at + CHUNK] for at in range(0, len(other), CHUNK))

    counts = {coding: np.zeros(256, np.uint64) for coding in ("xor", "bytes")}
    for coding, own in counts.items():
        for piece in pieces(coding == "xor"):
            own += np.bincount(piece, minlength=256).astype(np.uint64)
    overhead = 8 * (_HEAD * chunks_of(spec.nbytes) + 512)
    bits = {coding: float(_bits(own.reshape(1, 256).astype(np.float64))[0]) + overhead for coding, own in counts.items()}
    bits["plain"] = 8.0 * spec.nbytes
    about["coding"] = coding = min(bits, key=bits.__getitem__)
    if coding == "plain":
        yield Record("tables", "uint8", [])
        yield Record("chunks", "uint8", pieces(xor=False))
        yield Record("ends", "uint64", [])
        return
    frequencies = frequencies_of(counts[coding].reshape(1, 256))

    def encode(piece: Array) -> Array:
        if coding == "xor" and not piece.any():
            return np.zeros(0, np.uint8)
        coded = encode_symbols(np.ascontiguousarray(piece).reshape(1, -1), None, frequencies)
        return _chunk(coded.states, coded.words, np.zeros(0, np.uint8))

    yield from _records(_written(frequencies), in_order(encode, pieces(coding == "xor")))


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
    follows = np.zeros(len(stream) + 1, bool)
    follows[1:] = stream >= 128  # the first of two bytes; none that it is followed by can be one itself
    sound = not follows[-1] and not (follows[:-1] & (stream >= 128)).any()
    if not sound:
        raise MalformedError("the tables of frequencies end too early", code="E_PART_VALUES")
    first = np.flatnonzero(~follows[:-1])
    values = (stream[first] & 127).astype(np.int64)
    long = np.flatnonzero(stream[first] >= 128)
    values[long] |= stream[first[long] + 1].astype(np.int64) << 7
    totals = np.cumsum(values)
    ends = np.searchsorted(totals, kernels.RANS_SLOTS * np.arange(1, count + 1)) + 1
    starts = np.concatenate([[0], ends[:-1]])
    whole = ends[-1] == len(totals) and bool((totals[ends - 1] == kernels.RANS_SLOTS * np.arange(1, count + 1)).all())
    if not whole or int((ends - starts).max()) > 256:
        raise MalformedError("the tables of frequencies are not 4096 each, and nothing else", code="E_PART_VALUES")
    frequencies = np.zeros((count, 256), np.uint16)
    table = np.repeat(np.arange(count), ends - starts)
    frequencies[table, np.arange(len(totals)) - starts[table]] = values
    return frequencies
