"""The definition of the kernels that keep the bits of a word: exponent coding, masks, byte tables.

Exponent coding cuts a float into its exponent and the rest, `low` (sign above mantissa). Values come in groups of
64 and runs of 4096:

    planes   u64, 3 per group (f16: 6); bit i of plane p is bit p of the code of value i. The code of a value is its
             exponent − base + 1 if that is 1 to 7, else 0, and its exponent is the next byte of `escapes`. Planes 3–5
             of f16 are bits 8–10 of `low`.
    low      u8, 64 bytes per group (f32: 3 × 64, least significant first)
    escapes  u8, exponents in order; run r begins at starts[r]

What lies behind the last value of the last group is written as zero and ignored when read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__: list[str] = []  # named by `flyweight.kernels.KERNELS`

Array = np.ndarray[Any, Any]

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


# Exponent coding ------------------------------------------------------------------------------


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


def lossless_count_bf16(words: Array, counts: Array) -> None:
    _count(WORDS["bf16"], words, counts)


def lossless_count_f16(words: Array, counts: Array) -> None:
    _count(WORDS["f16"], words, counts)


def lossless_count_f32(words: Array, counts: Array) -> None:
    _count(WORDS["f32"], words, counts)


def lossless_encode_bf16(words: Array, base: int, planes: Array, low: Array, escapes: Array, counts: Array) -> None:
    _encode(WORDS["bf16"], words, base, planes, low, escapes, counts)


def lossless_encode_f16(words: Array, base: int, planes: Array, low: Array, escapes: Array, counts: Array) -> None:
    _encode(WORDS["f16"], words, base, planes, low, escapes, counts)


def lossless_encode_f32(words: Array, base: int, planes: Array, low: Array, escapes: Array, counts: Array) -> None:
    _encode(WORDS["f32"], words, base, planes, low, escapes, counts)


def lossless_decode_bf16(
    planes: Array, low: Array, starts: Array, escapes: Array, base: int, counts: Array, out: Array
) -> None:
    _decode(WORDS["bf16"], planes, low, starts, escapes, base, counts, out)


def lossless_decode_f16(planes: Array, low: Array, starts: Array, escapes: Array, base: int, counts: Array, out: Array) -> None:
    _decode(WORDS["f16"], planes, low, starts, escapes, base, counts, out)


def lossless_decode_f32(planes: Array, low: Array, starts: Array, escapes: Array, base: int, counts: Array, out: Array) -> None:
    _decode(WORDS["f32"], planes, low, starts, escapes, base, counts, out)


# Masks ----------------------------------------------------------------------------------------


def _expand(mask: Array, values: Array, out: Array) -> None:
    """The k-th set bit of the mask (rows in order, low bits first) takes values[k]; what has none is zero."""
    at = np.flatnonzero(np.unpackbits(mask, axis=1, count=out.shape[1], bitorder="little"))[: values.shape[1]]
    out[...] = 0
    out.reshape(-1)[at] = values[0, : len(at)]


def expand_8(mask: Array, values: Array, out: Array) -> None:
    _expand(mask, values, out)


def expand_16(mask: Array, values: Array, out: Array) -> None:
    _expand(mask, values, out)


def expand_32(mask: Array, values: Array, out: Array) -> None:
    _expand(mask, values, out)


# Byte tables ----------------------------------------------------------------------------------


def table_decode(codes: Array, table: Array, scale: Array, group: int, out: Array) -> None:
    """out = table[code] · scale, one scale per `group` columns, rounded once."""
    np.multiply(table[0][codes], scale[:, np.arange(codes.shape[1]) // group], out=out)
