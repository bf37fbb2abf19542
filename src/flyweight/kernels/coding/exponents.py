"""Exponent coding, which keeps the bits of a word.

It cuts a float into its exponent and the rest, `low` (sign above mantissa). Values come in groups of
64 and runs of 4096:

    planes   u64, 3 per group (f16: 6); bit i of plane p is bit p of the code of value i. The code of a value is its
             exponent − base + 1 if that is 1 to 7, else 0, and its exponent is the next byte of `escapes`. Planes 3–5
             of f16 are bits 8–10 of `low`.
    low      u8, 64 bytes per group (f32: 3 × 64, least significant first)
    escapes  u8, exponents in order; run r begins at starts[r]

What lies behind the last value of the last group is written as zero and ignored when read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flyweight.kernels.checks import U8, U32, U64, Array, check
from flyweight.kernels.registry import kernel

GROUP, RUN, CODED = 64, 4096, 7


class Word(NamedTuple):
    """How a float type is cut: its word, bits of mantissa and exponent, bytes of `low` in bytes, and in planes."""

    dtype: np.dtype[Any]
    mantissa: int
    exponent: int
    low: int
    planes: int


WORDS = {
    "bf16": Word(np.dtype("<u2"), 7, 8, 1, 3),
    "f16": Word(np.dtype("<u2"), 10, 5, 1, 6),
    "f32": Word(np.dtype("<u4"), 23, 8, 3, 3),
}


def _exponents(word: Word, words: Array) -> Array:
    return (words >> word.mantissa & ((1 << word.exponent) - 1)).astype(np.uint8)


def _count(word: Word, words: Array, counts: Array) -> None:
    counts[0] = np.bincount(_exponents(word, words[0]), minlength=256)


def _encode(word: Word, words: Array, base: int, planes: Array, low: Array, escapes: Array, counts: Array) -> None:
    count, groups = words.shape[1], len(planes)
    exponents = _exponents(word, words[0])
    codes = (exponents - np.uint8(base) + np.uint8(1)).astype(np.uint8)
    codes[(codes > CODED) | (exponents < base)] = 0
    counts[0] = np.bincount(np.flatnonzero(codes == 0) // RUN, minlength=counts.shape[1])
    escaped = exponents[codes == 0][: escapes.shape[1]]
    escapes[0] = 0
    escapes[0, : len(escaped)] = escaped

    wide = words[0].astype(np.uint32)
    rest = wide >> (8 * word.dtype.itemsize - 1) << word.mantissa | wide & ((1 << word.mantissa) - 1)
    padded = np.zeros((2, groups * GROUP), np.uint32)
    padded[:, :count] = codes, rest
    code, rest = padded.reshape(2, groups, GROUP)
    for i in range(word.low):
        low[:, GROUP * i : GROUP * (i + 1)] = rest >> 8 * i & 0xFF
    for p in range(word.planes):
        bits = code >> p & 1 if p < 3 else rest >> (5 + p) & 1
        planes[:, p : p + 1] = np.packbits(bits.astype(np.uint8), axis=1, bitorder="little").view("<u8")


def _decode(word: Word, planes: Array, low: Array, starts: Array, escapes: Array, base: int, counts: Array, out: Array) -> None:
    count, groups = out.shape[1], len(planes)
    bits = np.unpackbits(planes.view(np.uint8).reshape(groups, word.planes, 8), axis=2, bitorder="little").astype(np.uint32)
    rest = np.zeros((groups, GROUP), np.uint32)
    for i in range(word.low):
        rest |= low[:, GROUP * i : GROUP * (i + 1)].astype(np.uint32) << 8 * i
    for p in range(3, word.planes):
        rest |= bits[:, p] << (5 + p)
    code = (bits[:, 0] | bits[:, 1] << 1 | bits[:, 2] << 2).reshape(-1)[:count]
    rest = rest.reshape(-1)[:count]

    at = np.flatnonzero(code == 0)
    run = at // RUN
    counts[0] = np.bincount(run, minlength=counts.shape[1])
    before = np.cumsum(counts[0], dtype=np.int64) - counts[0]
    place = starts[0, run].astype(np.int64) + np.arange(len(at)) - before[run]
    exponents = code + np.uint32(base) - np.uint32(1)
    padded = np.append(escapes[0], np.uint8(0))  # an escape that is not there reads as zero
    exponents[at] = padded[np.minimum(place, escapes.shape[1])]
    exponents &= (1 << word.exponent) - 1
    sign = rest >> word.mantissa << (8 * word.dtype.itemsize - 1)
    out[0] = sign | exponents << word.mantissa | rest & ((1 << word.mantissa) - 1)


# Checked --------------------------------------------------------------------------------------


def _grouped(name: str, count: int, planes: Array, low: Array, *runs: Array) -> None:
    """Arrays of exponent coding: groups of 64 values, runs of 4096."""
    groups = -(-count // GROUP)
    check("planes", planes, U64, (groups, WORDS[name].planes))
    check("low", low, U8, (groups, GROUP * WORDS[name].low))
    for array in runs:
        check("starts and counts", array, U32, (1, -(-count // RUN)))


def _check_base(base: int) -> None:
    if not 0 <= base <= 256 - CODED:
        raise ValueError(f"base must be the first of seven exponents, 0 to 249, not {base}")


def _counter(name: str) -> Callable[[Array, Array], None]:
    registered = kernel(partial(_count, WORDS[name]), f"lossless_count_{name}")

    def count(words: Array, counts: Array) -> None:
        check("words", words, WORDS[name].dtype, (1, None))
        check("counts", counts, U64, (1, 256), written=True)
        registered.run(words, counts)

    count.__name__ = count.__qualname__ = registered.name
    count.__doc__ = f"How often each exponent occurs in {name} words. words: (1, n), counts: u64 (1, 256)."
    return count


def _word_encoder(name: str) -> Callable[[Array, int, Array, Array, Array, Array], None]:
    registered = kernel(partial(_encode, WORDS[name]), f"lossless_encode_{name}")

    def encode(words: Array, base: int, planes: Array, low: Array, escapes: Array, counts: Array) -> None:
        check("words", words, WORDS[name].dtype, (1, None))
        _check_base(base)
        _grouped(name, words.shape[1], planes, low, counts)
        check("escapes", escapes, U8, (1, None))
        if not all(array.flags.writeable for array in (planes, low, escapes, counts)):
            raise ValueError("an output is read-only")
        registered.run(words, base, planes, low, escapes, counts)

    encode.__name__ = encode.__qualname__ = registered.name
    encode.__doc__ = f"{name} words by exponent coding; counts: the escapes of each run, of which `escapes` keeps what fits."
    return encode


def _word_decoder(name: str) -> Callable[[Array, Array, Array, Array, int, Array, Array], None]:
    registered = kernel(partial(_decode, WORDS[name]), f"lossless_decode_{name}")

    def decode(planes: Array, low: Array, starts: Array, escapes: Array, base: int, counts: Array, out: Array) -> None:
        check("out", out, WORDS[name].dtype, (1, None), written=True)
        _check_base(base)
        _grouped(name, out.shape[1], planes, low, starts, counts)
        check("escapes", escapes, U8, (1, None))
        if not counts.flags.writeable:
            raise ValueError("counts is read-only")
        registered.run(planes, low, starts, escapes, base, counts, out)

    decode.__name__ = decode.__qualname__ = registered.name
    decode.__doc__ = f"The {name} words of exponent coding; counts: the escapes each run has read. An escape not there is zero."
    return decode


lossless_count_bf16, lossless_count_f16, lossless_count_f32 = map(_counter, WORDS)
lossless_encode_bf16, lossless_encode_f16, lossless_encode_f32 = map(_word_encoder, WORDS)
lossless_decode_bf16, lossless_decode_f16, lossless_decode_f32 = map(_word_decoder, WORDS)
