"""The entropy coder and differences of words: native kernels equal their definition, and give everything back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels

CHUNKS = [1, 31, 32, 64, 100, 4096]
COUNTS = [0, 1, 31, 32, 33, 95, 200, 1000]


def frequencies_of(symbols: np.ndarray, contexts: np.ndarray | None, tables: int) -> np.ndarray:
    """Something above zero for every symbol that occurs."""
    found = np.zeros((tables, 256), np.uint16)
    for table in range(tables):
        own = symbols if contexts is None else symbols[contexts == table]
        present = np.unique(own) if own.size else np.uint8([7])
        found[table, present] = np.maximum(4096 // (2 * len(present)), 1)
        found[table, present[0]] += 4096 - found[table].sum()
    return found


def encoded(symbols, contexts, frequencies, chunk, fenced):
    chunks = -(-symbols.shape[1] // chunk)
    states, words, counts = fenced((chunks, 32), np.uint32), fenced((chunks, chunk), np.uint16), fenced((1, chunks), np.uint64)
    words[...] = 0
    kernels.rans_encode(symbols, contexts, frequencies, chunk, states, words, counts)
    return states, words, counts


@pytest.mark.parametrize("tables", [0, 1, 16])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_rans(isa: str, fenced, chunk: int, tables: int) -> None:
    rng = np.random.default_rng(chunk)
    for count in COUNTS:
        symbols = fenced((1, count), np.uint8, np.minimum(rng.geometric(0.3, (1, count)), 255).astype(np.uint8))
        contexts = fenced((1, count), np.uint8, rng.integers(0, tables, (1, count))) if tables else None
        frequencies = frequencies_of(symbols, contexts, max(tables, 1))
        states, words, counts = encoded(symbols, contexts, frequencies, chunk, fenced)
        expected = [np.zeros_like(array) for array in (states, words, counts)]
        kernels.definition("rans_encode")(symbols, contexts, frequencies, chunk, *expected)
        for found, wanted in zip((states, words, counts), expected, strict=True):
            assert np.array_equal(found, wanted)
        stream = np.concatenate(
            [np.zeros(0, np.uint16)] + [row[chunk - int(n) :] for row, n in zip(words, counts[0], strict=True)]
        )
        decode(fenced, isa, states, stream, np.cumsum(counts, axis=1, dtype=np.uint64), contexts, frequencies, chunk, symbols)


def decode(fenced, isa, states, stream, ends, contexts, frequencies, chunk, symbols) -> None:
    words = fenced((1, len(stream)), np.uint16, stream)
    tables = kernels.rans_tables(frequencies)
    count, chunks = symbols.shape[1], len(states)
    for broken in (False, True):
        if broken and len(stream):
            words[0, ::3] ^= 0x5A5A
        shapes = (((1, count), np.uint8), ((chunks, 32), np.uint32), ((1, chunks), np.uint64))
        found, wanted = [fenced(*shape) for shape in shapes], [np.zeros(*shape) for shape in shapes]
        kernels.rans_decode(states, words, ends, contexts, tables, chunk, *found)
        kernels.definition("rans_decode")(states, words, ends, contexts, tables, chunk, *wanted)
        for a, b in zip(found, wanted, strict=True):
            assert np.array_equal(a, b)
        if not broken:
            assert np.array_equal(found[0], symbols)
            assert (found[1] == 1 << 16).all()
            assert np.array_equal(found[2], np.diff(ends, prepend=np.uint64(0)))
        if contexts is None:
            decode_floats(fenced, states, words, ends, tables, chunk, found)


def decode_floats(fenced, states, words, ends, table, chunk, symbols: list[np.ndarray]) -> None:
    count = symbols[0].shape[1]
    for dtype in (np.uint16, np.uint32):
        bits = 8 * np.dtype(dtype).itemsize
        low = fenced((count, bits // 8 - 1), np.uint8, np.random.default_rng(count).integers(0, 256, (count, bits // 8 - 1)))
        found = [fenced((1, count), dtype), *(fenced(array.shape, array.dtype) for array in symbols[1:])]
        wanted = [np.zeros_like(array) for array in found]
        kernels.rans_decode_floats(states, words, ends, table, low, chunk, *found)
        kernels.definition("rans_decode_floats")(states, words, ends, table, low, chunk, *wanted)
        for a, b in zip(found, wanted, strict=True):
            assert np.array_equal(a, b)
        assert np.array_equal(found[0][0] >> (bits - 9) & 0xFF, symbols[0][0]), "the byte below the sign"


WORDS = {"bf16": (np.uint16, 7), "f16": (np.uint16, 10), "f32": (np.uint32, 23)}


def pairs(kind: str, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Words of any bits, near ones and far ones, equal ones, and the two ends of the order."""
    dtype = WORDS[kind][0]
    top = np.iinfo(dtype).max
    base = rng.integers(0, top, count, dtype, endpoint=True)
    tuned = np.where(
        rng.random(count) < 0.5,
        base + rng.integers(0, 9, count).astype(dtype),
        rng.integers(0, top, count, dtype, endpoint=True),
    )
    tuned = np.where(rng.random(count) < 0.2, base, tuned).astype(dtype)
    odd = np.array([0, top, top // 2, top // 2 + 1], dtype)
    base[: min(count, 16)], tuned[: min(count, 16)] = np.repeat(odd, 4)[:count], np.tile(odd, 4)[:count]
    return base.reshape(1, -1), tuned.reshape(1, -1)


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("chunk", [1, 3, 64, 100, 4096])
def test_differences(isa: str, fenced, kind: str, chunk: int) -> None:
    rng = np.random.default_rng(chunk)
    dtype, mantissa = WORDS[kind]
    for count in COUNTS:
        plain = pairs(kind, count, rng)
        base, tuned = (fenced((1, count), dtype, each) for each in plain)
        chunks = -(-count // chunk)
        counts, wanted = fenced((256, 256), np.uint64), np.ones((256, 256), np.uint64)
        counts[...] = 1
        kernels.delta_count(base, tuned, mantissa, counts)
        kernels.definition("delta_count")(base, tuned, mantissa, wanted)
        assert np.array_equal(counts, wanted)

        shapes = (((1, count), np.uint8), ((chunks, chunk * base.itemsize), np.uint8), ((1, chunks), np.uint64))
        found, expected = [fenced(*shape) for shape in shapes], [np.zeros(*shape) for shape in shapes]
        kernels.delta_split(base, tuned, chunk, *found)
        kernels.definition("delta_split")(base, tuned, chunk, *expected)
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(found[2], expected[2])
        rows = [[row[: int(n)] for row, n in zip(each[1], each[2][0], strict=True)] for each in (found, expected)]
        assert all(np.array_equal(a, b) for a, b in zip(*rows, strict=True))

        low = np.concatenate([np.zeros(0, np.uint8), *rows[0]])
        low, ends = fenced((1, len(low)), np.uint8, low), np.cumsum(found[2], axis=1, dtype=np.uint64)
        for symbols in (found[0], fenced((1, count), np.uint8, rng.integers(0, 256, (1, count)))):
            out, used = fenced((1, count), dtype), fenced((1, chunks), np.uint64)
            same, taken = np.zeros((1, count), dtype), np.zeros((1, chunks), np.uint64)
            kernels.delta_join(base, symbols, low, ends, chunk, out, used)
            kernels.definition("delta_join")(base, symbols, low, ends, chunk, same, taken)
            assert np.array_equal(out, same)
            assert np.array_equal(used, taken)
            if symbols is found[0]:
                assert np.array_equal(out, tuned)
                assert np.array_equal(used, found[2])

        table = rng.integers(0, 256, (1, 256), np.uint8)
        contexts = fenced((1, count), np.uint8)
        kernels.delta_contexts(base, table, mantissa, contexts)
        assert np.array_equal(contexts[0], table[0, (base[0] & np.iinfo(dtype).max // 2) >> mantissa])


def test_order_is_that_of_the_floats() -> None:
    """A step to the next float is a difference of one, across zero too."""
    values = np.float32([-1.0, -0.0, 0.0, 1.0, 3e-39]).astype(ml_dtypes.bfloat16)
    for value in values:
        for toward in (np.float32(9), np.float32(-9)):
            following = np.nextafter(value, ml_dtypes.bfloat16(toward))
            if following == value or 0 in (float(value), float(following)):
                continue
            counts = np.zeros((256, 256), np.uint64)
            kernels.delta_count(value.reshape(1, 1).view(np.uint16), following.reshape(1, 1).view(np.uint16), 7, counts)
            assert counts[:, 2:4].sum() == 1, (value, following)


def test_tables_are_full() -> None:
    frequencies = np.zeros((2, 256), np.uint16)
    frequencies[:, 3] = 4096
    assert (kernels.rans_tables(frequencies) == (3 << 24 | 4095 << 12 | np.arange(4096))).all()
    for wrong in (frequencies * 0, frequencies[:, :255], np.repeat(frequencies, 9, 0)):
        with pytest.raises(ValueError):
            kernels.rans_tables(np.ascontiguousarray(wrong))


def test_a_frequency_fits_its_table() -> None:
    frequencies = np.zeros((1, 256), np.uint16)
    frequencies[0, 3] = 4097
    out = np.empty((1, 32), np.uint32), np.empty((1, 8), np.uint16), np.empty((1, 1), np.uint64)
    with pytest.raises(ValueError, match="above 4096"):
        kernels.rans_encode(np.full((1, 8), 3, np.uint8), None, frequencies, 8, *out)


def test_every_frequency_divides(isa: str) -> None:
    """Table k has a symbol of frequency k and one of 4096 − k, so that a chunk divides many states by each."""
    rng = np.random.default_rng(5)
    count = 1600
    for first in range(0, 2049, 16):
        frequencies = np.zeros((16, 256), np.uint16)
        frequencies[:, 7] = np.arange(first, first + 16)
        frequencies[:, 9] = 4096 - frequencies[:, 7]
        contexts = rng.integers(0, 16, (1, count)).astype(np.uint8)
        symbols = np.where((rng.random((1, count)) < 0.5) & (frequencies[:, 7][contexts] > 0), np.uint8(7), np.uint8(9))
        found, expected = (
            (np.zeros((1, 32), np.uint32), np.zeros((1, count), np.uint16), np.zeros((1, 1), np.uint64)) for _ in range(2)
        )
        kernels.rans_encode(symbols, contexts, frequencies, count, *found)
        kernels.definition("rans_encode")(symbols, contexts, frequencies, count, *expected)
        for a, b in zip(found, expected, strict=True):
            assert np.array_equal(a, b)
