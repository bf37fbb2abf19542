"""Products with stored weights: x · Wᵀ straight from their packed form, docs/formats/matvec.md."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flyweight.kernels.dispatch import BF16, BLOCKS, F16, F32, U8, U16, Array, check, running

BATCH = 16
"""The most products of one call."""


def _check_product(rows: int, columns: int, x: Array, out: Array, threads: int) -> None:
    check("x", x, F32, (None, columns))
    check("out", out, F32, (len(x), rows), written=True)
    if not 1 <= len(x) <= BATCH:
        raise ValueError(f"x must have 1 to {BATCH} rows, not {len(x)}")
    if columns % 32:
        raise ValueError(f"products take columns in multiples of 32, not {columns}")
    if not 1 <= threads <= 256:
        raise ValueError(f"threads must be 1 to 256, not {threads}")


def _bits(array: Array) -> Array:
    """The extension takes bf16 as u16."""
    return array.view(U16) if isinstance(array, np.ndarray) and array.dtype == BF16 else array


def _blocks_product(name: str) -> Callable[..., None]:
    size, nbytes = BLOCKS[name]
    kernel = f"matvec_{name}"

    def matvec(blocks: Array, x: Array, out: Array, int8: bool = False, threads: int = 1) -> None:
        check("blocks", blocks, U8, (None, None))
        rows, stride = blocks.shape
        if stride % nbytes:
            raise ValueError(f"rows of {stride} bytes are not whole {name} blocks of {nbytes}")
        _check_product(rows, stride // nbytes * size, x, out, threads)
        running[kernel](blocks, x, out, int8, threads)

    matvec.__name__ = matvec.__qualname__ = kernel
    matvec.__doc__ = f"x · Wᵀ, W in {name}. blocks: u8 (rows, bytes), x: f32 (n, columns), out: f32 (n, rows)."
    return matvec


matvec_q4_0 = _blocks_product("q4_0")
matvec_q8_0 = _blocks_product("q8_0")
matvec_q4_k = _blocks_product("q4_k")
matvec_q6_k = _blocks_product("q6_k")


def _check_groups(columns: int, group: int, codes: Array, **parts: Array) -> None:
    if group < 32 or group % 32 or columns % group:
        raise ValueError(f"products take groups of a multiple of 32 that divides {columns} columns, not {group}")
    kinds = [array.dtype for array in parts.values() if isinstance(array, np.ndarray)]
    kind = kinds[0] if kinds and kinds[0] in (F32, F16, U16) else F32
    for label, array in parts.items():
        check(label, array, kind, (len(codes), columns // group))


def matvec_affine4(
    codes: Array, scale: Array, bias: Array, group: int, x: Array, out: Array, int8: bool = False, threads: int = 1
) -> None:
    """x · Wᵀ, W = code · scale + bias, two codes a byte, the low one first.

    codes: u8 (rows, columns / 2), scale and bias: f32, f16 or bf16 (rows, columns / group).
    """
    check("codes", codes, U8, (None, None))
    scale, bias, columns = _bits(scale), _bits(bias), codes.shape[1] * 2
    _check_groups(columns, group, codes, scale=scale, bias=bias)
    _check_product(len(codes), columns, x, out, threads)
    running["matvec_affine4"](codes, scale, bias, group, x, out, int8, threads)


def matvec_affine8(
    codes: Array, scale: Array, bias: Array, group: int, x: Array, out: Array, int8: bool = False, threads: int = 1
) -> None:
    """x · Wᵀ, W = code · scale + bias, a code a byte. Shapes as in `matvec_affine4`, codes: u8 (rows, columns)."""
    check("codes", codes, U8, (None, None))
    scale, bias, columns = _bits(scale), _bits(bias), codes.shape[1]
    _check_groups(columns, group, codes, scale=scale, bias=bias)
    _check_product(len(codes), columns, x, out, threads)
    running["matvec_affine8"](codes, scale, bias, group, x, out, int8, threads)


def matvec_symmetric8(
    codes: Array, scale: Array, group: int, x: Array, out: Array, int8: bool = False, threads: int = 1
) -> None:
    """x · Wᵀ, W = code · scale, codes two's complement in u8 (rows, columns); group = columns for one scale a row."""
    check("codes", codes, U8, (None, None))
    scale, columns = _bits(scale), codes.shape[1]
    _check_groups(columns, group, codes, scale=scale)
    _check_product(len(codes), columns, x, out, threads)
    running["matvec_symmetric8"](codes, scale, group, x, out, int8, threads)


def matvec_bf16(weights: Array, x: Array, out: Array, threads: int = 1) -> None:
    """x · Wᵀ, W in bf16, as that or as u16 (rows, columns)."""
    weights = _bits(weights)
    check("weights", weights, U16, (None, None))
    _check_product(weights.shape[0], weights.shape[1], x, out, threads)
    running["matvec_bf16"](weights, x, out, threads)


def matvec_f16(weights: Array, x: Array, out: Array, threads: int = 1) -> None:
    """x · Wᵀ, W in f16 (rows, columns)."""
    check("weights", weights, F16, (None, None))
    _check_product(weights.shape[0], weights.shape[1], x, out, threads)
    running["matvec_f16"](weights.view(U16), x, out, threads)


def matvec_palette4(codes: Array, table: Array, x: Array, out: Array, threads: int = 1) -> None:
    """x · Wᵀ, W = table[code], two codes a byte, the low one first. codes: u8 (rows, columns / 2), table: f32 (16,)."""
    check("codes", codes, U8, (None, None))
    if not isinstance(table, np.ndarray) or table.ndim != 1:
        raise TypeError("table must be an array of one dimension")
    check("table", table.reshape(1, -1), F32, (1, 16))
    _check_product(len(codes), codes.shape[1] * 2, x, out, threads)
    running["matvec_palette4"](codes, table, x, out, threads)
