"""Asymmetric numeral systems (rANS): symbols in little more than their entropy, decoded 32 at a time.

Symbols are bytes. A table has a frequency for each of them, 4096 in all. A context, known to both sides, says which of up to
16 tables codes a symbol. Chunks of symbols are independent. Symbol i of a chunk belongs to state i mod 32 of 32 bits, s ≥ 2¹⁶:

    slot     s mod 4096; the symbol is the one whose frequencies [start, start + frequency) hold it
    decoded  s ← frequency · (s div 4096) + slot − start; below 2¹⁶, s ← 2¹⁶ · s + the chunk's next word of 16 bits
    encoded  the inverse, from the last symbol to the first, beginning with s = 2¹⁶

So a chunk is 32 states and some words, and whoever has decoded it finds every state at 2¹⁶ and no word left.
"""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import U8, U16, U32, U64, Array, check
from flyweight.kernels.registry import kernel

__all__ = ["RANS_CONTEXTS", "RANS_SLOTS", "RANS_STATES", "rans_decode", "rans_decode_floats", "rans_encode", "rans_tables"]

RANS_STATES, RANS_SYMBOLS, RANS_CONTEXTS, RANS_BITS, RANS_SLOTS = 32, 256, 16, 12, 4096
RANS_LEAST = 1 << 16


def rans_tables(frequencies: Array) -> Array:
    """For each slot: symbol << 24 | frequency − 1 << 12 | slot − start. ValueError unless every table fills its slots."""
    check("frequencies", frequencies, U16, (None, RANS_SYMBOLS))
    if len(frequencies) > RANS_CONTEXTS or (frequencies.sum(1, dtype=np.int64) != RANS_SLOTS).any():
        raise ValueError(f"there are at most {RANS_CONTEXTS} tables, and the frequencies of each are {RANS_SLOTS} in all")
    each = frequencies.astype(np.int64)
    starts = np.cumsum(each, axis=1) - each
    first = (np.arange(RANS_SYMBOLS) << 24) + (each - 1 << 12) - starts  # of a symbol's slots, that of slot 0 would be this
    return (np.repeat(first.reshape(-1), each.reshape(-1)).reshape(-1, RANS_SLOTS) + np.arange(RANS_SLOTS)).astype(np.uint32)


def _steps(array: Array | None, count: int, chunk: int) -> Array:
    """Symbols or contexts as (steps, chunks, 32); what lies behind the last is 0."""
    chunks, steps = -(-count // chunk), -(-chunk // RANS_STATES)
    padded = np.zeros((chunks, steps * RANS_STATES), np.int64)
    if array is not None:
        for at in range(chunks):
            values = array[0, at * chunk : (at + 1) * chunk]
            padded[at, : len(values)] = values
    return np.moveaxis(padded.reshape(chunks, steps, RANS_STATES), 1, 0)


def _lengths(count: int, chunk: int) -> Array:
    return np.minimum(count - np.arange(0, count, chunk), chunk)


@kernel
def _rans_encode(
    symbols: Array, contexts: Array | None, frequencies: Array, chunk: int, states: Array, words: Array, counts: Array
) -> None:
    count = symbols.shape[1]
    each = frequencies.astype(np.int64)
    starts = np.cumsum(each, axis=1) - each
    symbol, table, lengths = _steps(symbols, count, chunk), _steps(contexts, count, chunk), _lengths(count, chunk)
    lane, state = np.arange(RANS_STATES), np.full(states.shape, RANS_LEAST, np.int64)
    emitted: list[list[int]] = [[] for _ in lengths]
    for step in reversed(range(len(symbol))):
        frequency = np.maximum(each[table[step], symbol[step]], 1)
        coded = step * RANS_STATES + lane < lengths[:, None]
        large = coded & (state >= frequency << (32 - RANS_BITS))
        for at in np.flatnonzero(large.any(1)):
            emitted[at].extend((state[at][large[at]] & 0xFFFF)[::-1].tolist())
        state = np.where(large, state >> 16, state)
        after = (state // frequency << RANS_BITS) + state % frequency + starts[table[step], symbol[step]]
        state = np.where(coded, after, state)
    states[...] = state
    counts[0] = [len(own) for own in emitted]
    for own, row in zip(emitted, words, strict=True):
        row[chunk - len(own) :] = own[::-1]


@kernel
def _rans_decode(
    states: Array, words: Array, ends: Array, contexts: Array | None, tables: Array, chunk: int, out: Array, finals: Array,
    taken: Array,
) -> None:  # fmt: skip
    count, total = out.shape[1], words.shape[1]
    table, lengths, lane = _steps(contexts, count, chunk), _lengths(count, chunk), np.arange(RANS_STATES)
    state, decoded = states.astype(np.int64), np.zeros((len(table), len(lengths), RANS_STATES), np.uint8)
    begins = np.concatenate([[0], ends[0, :-1].astype(np.int64)]) if len(lengths) else np.zeros(0, np.int64)
    following = begins.copy()
    padded = np.append(words[0], np.uint16(0)).astype(np.int64)
    for step in range(len(table)):
        coded = step * RANS_STATES + lane < lengths[:, None]
        entry = tables[table[step], state & RANS_SLOTS - 1].astype(np.int64)
        after = ((entry >> 12 & 0xFFF) + 1) * (state >> RANS_BITS) + (entry & 0xFFF)
        small = coded & (after < RANS_LEAST)
        place = following[:, None] + np.cumsum(small, axis=1) - small
        after = np.where(small, after << 16 | padded[np.minimum(place, total)], after)
        state = np.where(coded, after, state)
        following += small.sum(1)
        decoded[step] = entry >> 24
    finals[...] = state
    taken[0] = following - begins
    whole = np.moveaxis(decoded, 0, 1).reshape(len(lengths), len(table) * RANS_STATES)
    for at, length in enumerate(lengths):
        out[0, at * chunk : at * chunk + length] = whole[at, :length]


@kernel
def _rans_decode_floats(
    states: Array, words: Array, ends: Array, table: Array, low: Array, chunk: int, out: Array, finals: Array, taken: Array
) -> None:
    symbols = np.empty(out.shape, np.uint8)
    _rans_decode.definition(states, words, ends, None, table, chunk, symbols, finals, taken)
    moved = symbols[0].astype(out.dtype) << 8 * low.shape[1]
    for at in range(low.shape[1]):
        moved |= low[:, at].astype(out.dtype) << 8 * at
    out[0] = moved >> 1 | moved << (8 * out.itemsize - 1)


def _check_chunks(count: int, chunk: int, states: Array, contexts: Array | None, tables: int) -> int:
    if chunk < 1:
        raise ValueError(f"a chunk has at least one symbol, not {chunk}")
    if not 1 <= tables <= RANS_CONTEXTS:
        raise ValueError(f"there are 1 to {RANS_CONTEXTS} tables, not {tables}")
    if contexts is not None:
        check("contexts", contexts, U8, (1, count))
        if count and contexts.max() >= tables:
            raise ValueError("a context has no table")
    chunks = -(-count // chunk)
    check("states", states, U32, (chunks, RANS_STATES))
    return chunks


def _check_coded(chunks: int, words: Array, ends: Array, finals: Array, taken: Array) -> None:
    check("words", words, U16, (1, None))
    check_ends(ends, chunks, words.shape[1])
    check("finals", finals, U32, (chunks, RANS_STATES), written=True)
    check("taken", taken, U64, (1, chunks), written=True)


def check_ends(ends: Array, chunks: int, total: int) -> None:
    """Where chunks end that lie behind one another: never before the one before, and within `total`."""
    check("ends", ends, U64, (1, chunks))
    if chunks and (ends[0, -1] > total or (ends[0, 1:] < ends[0, :-1]).any()):
        raise ValueError("the chunks do not lie behind one another")


def rans_encode(
    symbols: Array, contexts: Array | None, frequencies: Array, chunk: int, states: Array, words: Array, counts: Array
) -> None:
    """Symbols in chunks. Row c of `words`, u16 (chunks, chunk), ends with the counts[0, c] words of chunk c, as they are read.

    symbols, contexts: u8 (1, n); without contexts all is coded by the first table. frequencies: u16 (tables, 256), above 0 for
    every symbol that occurs. states: u32 (chunks, 32). counts: u64 (1, chunks).
    """
    check("symbols", symbols, U8, (1, None))
    check("frequencies", frequencies, U16, (None, RANS_SYMBOLS))
    chunks = _check_chunks(symbols.shape[1], chunk, states, contexts, len(frequencies))
    check("words", words, U16, (chunks, chunk), written=True)
    check("counts", counts, U64, (1, chunks), written=True)
    if not states.flags.writeable:
        raise ValueError("states is read-only")
    if frequencies.max() > RANS_SLOTS:
        raise ValueError(f"a frequency is above {RANS_SLOTS}")
    _rans_encode.run(symbols, contexts, frequencies, chunk, states, words, counts)


def rans_decode(
    states: Array, words: Array, ends: Array, contexts: Array | None, tables: Array, chunk: int, out: Array, finals: Array,
    taken: Array,
) -> None:  # fmt: skip
    """Symbols of chunks whose words lie behind one another in `words`, u16 (1, total), and end at `ends`, u64 (1, chunks).

    tables: u32 (tables, 4096), by `rans_tables`. out: u8 (1, n). finals, u32 (chunks, 32), and taken, u64 (1, chunks), say how
    each chunk ended: as it was written, every state is 2¹⁶ and all its words are taken. A word behind the last is read as zero.
    """
    check("out", out, U8, (1, None), written=True)
    check("tables", tables, U32, (None, RANS_SLOTS))
    chunks = _check_chunks(out.shape[1], chunk, states, contexts, len(tables))
    _check_coded(chunks, words, ends, finals, taken)
    _rans_decode.run(states, words, ends, contexts, tables, chunk, out, finals, taken)


def rans_decode_floats(
    states: Array, words: Array, ends: Array, table: Array, low: Array, chunk: int, out: Array, finals: Array, taken: Array
) -> None:
    """Words of 16 or 32 bits, (1, n). Moved up by one bit, the sign last, their upper byte is coded by one table. The other
    bytes, least significant first, are rows of `low`. All else is as `rans_decode` has it.
    """
    if not isinstance(out, np.ndarray) or out.dtype not in (U16, U32):
        raise TypeError(f"out must be words of 16 or 32 bits, not {getattr(out, 'dtype', type(out).__name__)}")
    check("out", out, out.dtype, (1, None), written=True)
    check("low", low, U8, (out.shape[1], out.itemsize - 1))
    check("table", table, U32, (1, RANS_SLOTS))
    chunks = _check_chunks(out.shape[1], chunk, states, None, 1)
    _check_coded(chunks, words, ends, finals, taken)
    _rans_decode_floats.run(states, words, ends, table, low, chunk, out, finals, taken)
