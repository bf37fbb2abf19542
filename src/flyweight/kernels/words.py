"""The bits of words: exponent coding, values where a mask has a bit, and tables of 256 values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flyweight.kernels import reference_words
from flyweight.kernels.dispatch import F32, U8, Array, check, check_stream, running
from flyweight.kernels.reference_words import WORDS


def _grouped(name: str, count: int, planes: Array, low: Array, *runs: Array) -> None:
    """Arrays of exponent coding: groups of 64 values, runs of 4096."""
    groups = -(-count // reference_words.GROUP)
    check("planes", planes, np.dtype(np.uint64), (groups, WORDS[name].planes))
    check("low", low, U8, (groups, reference_words.GROUP * WORDS[name].low))
    for array in runs:
        check("starts and counts", array, np.dtype(np.uint32), (1, -(-count // reference_words.RUN)))


def _check_base(base: int) -> None:
    if not 0 <= base <= 256 - reference_words.CODED:
        raise ValueError(f"base must be the first of seven exponents, 0 to 249, not {base}")


def _counter(name: str) -> Callable[[Array, Array], None]:
    kernel = f"lossless_count_{name}"

    def count(words: Array, counts: Array) -> None:
        check("words", words, WORDS[name].dtype, (1, None))
        check("counts", counts, np.dtype(np.uint64), (1, 256), written=True)
        running[kernel](words, counts)

    count.__name__ = count.__qualname__ = kernel
    count.__doc__ = f"How often each exponent occurs in {name} words. words: (1, n), counts: u64 (1, 256)."
    return count


def _word_encoder(name: str) -> Callable[[Array, int, Array, Array, Array, Array], None]:
    kernel = f"lossless_encode_{name}"

    def encode(words: Array, base: int, planes: Array, low: Array, escapes: Array, counts: Array) -> None:
        check("words", words, WORDS[name].dtype, (1, None))
        _check_base(base)
        _grouped(name, words.shape[1], planes, low, counts)
        check("escapes", escapes, U8, (1, None))
        if not all(array.flags.writeable for array in (planes, low, escapes, counts)):
            raise ValueError("an output is read-only")
        running[kernel](words, base, planes, low, escapes, counts)

    encode.__name__ = encode.__qualname__ = kernel
    encode.__doc__ = f"{name} words by exponent coding; counts: the escapes of each run, of which `escapes` keeps what fits."
    return encode


def _word_decoder(name: str) -> Callable[[Array, Array, Array, Array, int, Array, Array], None]:
    kernel = f"lossless_decode_{name}"

    def decode(planes: Array, low: Array, starts: Array, escapes: Array, base: int, counts: Array, out: Array) -> None:
        check("out", out, WORDS[name].dtype, (1, None), written=True)
        _check_base(base)
        _grouped(name, out.shape[1], planes, low, starts, counts)
        check("escapes", escapes, U8, (1, None))
        if not counts.flags.writeable:
            raise ValueError("counts is read-only")
        running[kernel](planes, low, starts, escapes, base, counts, out)

    decode.__name__ = decode.__qualname__ = kernel
    decode.__doc__ = f"The {name} words of exponent coding; counts: the escapes each run has read. An escape not there is zero."
    return decode


lossless_count_bf16, lossless_count_f16, lossless_count_f32 = map(_counter, WORDS)
lossless_encode_bf16, lossless_encode_f16, lossless_encode_f32 = map(_word_encoder, WORDS)
lossless_decode_bf16, lossless_decode_f16, lossless_decode_f32 = map(_word_decoder, WORDS)


def _expander(bits: int) -> Callable[[Array, Array, Array], None]:
    kernel, word = f"expand_{bits}", np.dtype(f"<u{bits // 8}")

    def expand(mask: Array, values: Array, out: Array) -> None:
        check("mask", mask, U8, (None, None))
        check("values", values, word, (1, None))
        check("out", out, word, (len(mask), None), written=True)
        check_stream(1, out.shape[1], mask.shape[1])
        running[kernel](mask, values, out)

    expand.__name__ = expand.__qualname__ = kernel
    expand.__doc__ = (
        f"Values where a mask has a bit, else zero. mask: u8 (rows, nbytes), values: u{bits} (1, n), out: (rows, columns)."
    )
    return expand


expand_8, expand_16, expand_32 = map(_expander, (8, 16, 32))


def table_decode(codes: Array, table: Array, scale: Array, group: int, out: Array) -> None:
    """table[code] · scale per group of columns (the last may be short).

    codes: u8 (rows, columns), table: f32 (1, 256), scale: f32 (rows, groups), out: f32 (rows, columns).
    """
    if group < 1:
        raise ValueError(f"group must be at least 1, not {group}")
    check("codes", codes, U8, (None, None))
    rows, columns = codes.shape
    check("table", table, F32, (1, 256))
    check("scale", scale, F32, (rows, -(-columns // group)))
    check("out", out, F32, (rows, columns), written=True)
    running["table_decode"](codes, table, scale, group, out)
