"""Single codecs' own kernels: fp8, masks of what is not zero, signs, products of low rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flyweight.kernels.dispatch import F32, F64, U8, Array, check, check_numbers, check_stream, running


def _check_group(group: int) -> None:
    if group < 1:
        raise ValueError(f"group must be at least 1, not {group}")


def magnitudes(values: Array, group: int, out: Array) -> None:
    """The greatest magnitude per group of columns (the last may be short), NaN where there is one.

    values: f32 or bf16 (rows, columns), out: f32 (rows, groups).
    """
    _check_group(group)
    plain = check_numbers(values, (None, None))
    check("out", out, F32, (len(values), -(-values.shape[1] // group)), written=True)
    running["magnitudes"](plain, group, out)


def fp8_codes(values: Array, scale: Array, group: int, divide: bool, wide: bool, out: Array) -> None:
    """The nearest codes in E4M3, or E5M2 with `wide`; with `divide` the scales are those that decoding divides by.

    values: f32 or bf16 (rows, columns), scale: f32 (rows, groups), out: u8 (rows, columns).
    """
    _check_group(group)
    plain = check_numbers(values, (None, None))
    check("scale", scale, F32, (len(values), -(-values.shape[1] // group)))
    check("out", out, U8, values.shape, written=True)
    running["fp8_codes"](plain, scale, group, divide, wide, out)


def sign_encode(values: Array, packed: Array, sums: Array) -> None:
    """Which numbers are 0 or more, and each row's sum of magnitudes.

    values: f32 or bf16 (rows, columns), packed: u8 (rows, nbytes), low bits first, sums: f64 (rows, 1).
    """
    plain = check_numbers(values, (None, None))
    check("packed", packed, U8, (len(values), None), written=True)
    check_stream(1, values.shape[1], packed.shape[1])
    check("sums", sums, F64, (len(values), 1), written=True)
    running["sign_encode"](plain, packed, sums)


def _marker(bits: int) -> Callable[[Array, int, Array], None]:
    kernel, word = f"mark_{bits}", np.dtype(f"<u{bits // 8}")

    def mark(words: Array, keep: int, mask: Array) -> None:
        check("words", words, word, (None, None))
        if not 0 <= keep < 1 << bits:
            raise ValueError(f"keep must be {bits} bits, not {keep}")
        check("mask", mask, U8, (len(words), None), written=True)
        check_stream(1, words.shape[1], mask.shape[1])
        running[kernel](words, keep, mask)

    mark.__name__ = mark.__qualname__ = kernel
    mark.__doc__ = f"A bit where a word has any of `keep`. words: u{bits} (rows, columns), mask: u8 (rows, nbytes)."
    return mark


def _gatherer(bits: int) -> Callable[[Array, Array, Array], None]:
    kernel, word = f"gather_{bits}", np.dtype(f"<u{bits // 8}")

    def gather(mask: Array, words: Array, out: Array) -> None:
        check("mask", mask, U8, (None, None))
        check("words", words, word, (len(mask), None))
        check_stream(1, words.shape[1], mask.shape[1])
        check("out", out, word, (1, None), written=True)
        running[kernel](mask, words, out)

    gather.__name__ = gather.__qualname__ = kernel
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
    running["places"](mask, columns, out)


def add_product(left: Array, right: Array, out: Array) -> None:
    """out += left · right, one rank after the other.

    left: f32 (rows, rank), right: f32 (rank, columns), out: f32 (rows, columns).
    """
    check("left", left, F32, (None, None))
    check("right", right, F32, (left.shape[1], None))
    check("out", out, F32, (len(left), right.shape[1]), written=True)
    running["add_product"](left, right, out)
