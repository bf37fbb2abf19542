"""Products with stored weights, in NumPy: decode some rows, multiply in f32. out = x · Wᵀ.

These say what a product means; unlike the other kernels, native ones equal them only within the bound derived in
docs/formats/matvec.md, because sums of floats depend on their order.

Nothing is checked here: callers come through `flyweight.kernels`, which has checked the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flyweight.kernels import reference, reference_affine

__all__: list[str] = []  # named by `flyweight.kernels.MATVEC`

Array = np.ndarray[Any, Any]

SLAB = 1 << 20
"""Weights decoded at a time."""


def quantize_activations(x: Array) -> tuple[Array, Array]:
    """Codes (n, columns) and scales (n, columns / 32): code = rint(x · (127 / peak)), scale = peak / 127.

    A peak whose inverse is infinite gives zeros; one that is not finite gives zeros and a NaN scale.
    """
    runs = x.reshape(len(x), -1, 32)
    peak = np.abs(runs).max(axis=2, initial=0)
    with np.errstate(all="ignore"):
        steps = np.float32(127) / peak
        unfit, fits = ~np.isfinite(peak), np.isfinite(peak) & np.isfinite(steps)
        whole = np.where(fits[:, :, None], np.rint(runs * steps[:, :, None]), np.float32(0))
    scale = np.where(fits, peak / np.float32(127), np.where(unfit, np.float32(np.nan), np.float32(0)))
    return whole.astype(np.int8).reshape(x.shape), scale.astype(np.float32)


def _activations(x: Array, int8: bool) -> Array:
    """What the weights are multiplied with: x, or x as its int8 codes stand for it."""
    if not int8:
        return x
    codes, scale = quantize_activations(x)
    return np.asarray(codes.astype(np.float32) * np.repeat(scale, 32, axis=1))


def _multiply(decode: Callable[[slice], Array], x: Array, out: Array) -> None:
    rows = out.shape[1]
    step = max(1, SLAB // max(1, x.shape[1]))
    for start in range(0, rows, step):
        here = slice(start, min(start + step, rows))
        np.matmul(x, decode(here).T, out=out[:, here])


def _blocks(name: str, size: int, blocks: Array, x: Array, out: Array, int8: bool) -> None:
    nbytes = blocks.shape[1] * size // x.shape[1] if x.shape[1] else 1
    decode_blocks = getattr(reference, f"decode_{name}")

    def decode(rows: slice) -> Array:
        some = blocks[rows].reshape(-1, nbytes)
        values = np.empty((len(some), size), np.float32)
        decode_blocks(some, values)
        return values.reshape(-1, x.shape[1])

    _multiply(decode, _activations(x, int8), out)


def matvec_q4_0(blocks: Array, x: Array, out: Array, int8: bool, threads: int) -> None:
    _blocks("q4_0", 32, blocks, x, out, int8)


def matvec_q8_0(blocks: Array, x: Array, out: Array, int8: bool, threads: int) -> None:
    _blocks("q8_0", 32, blocks, x, out, int8)


def matvec_q4_k(blocks: Array, x: Array, out: Array, int8: bool, threads: int) -> None:
    _blocks("q4_k", 256, blocks, x, out, int8)


def matvec_q6_k(blocks: Array, x: Array, out: Array, int8: bool, threads: int) -> None:
    _blocks("q6_k", 256, blocks, x, out, int8)


def _nibbles(codes: Array) -> Array:
    """Two codes a byte, the low one first."""
    return np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)


def _widen(values: Array) -> Array:
    """f32 and f16 as they are, u16 as the bf16 it holds."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _affine(codes: Array, scale: Array, bias: Array | None, group: int, x: Array, out: Array, int8: bool) -> None:
    def decode(rows: slice) -> Array:
        some = _nibbles(codes[rows]) if codes.shape[1] < x.shape[1] else codes[rows]
        if bias is None:
            return np.asarray(some.view(np.int8).astype(np.float32) * np.repeat(_widen(scale[rows]), group, axis=1))
        values = np.empty(some.shape, np.float32)
        reference_affine.decode_scale_bias(
            np.ascontiguousarray(some), 8, _widen(scale[rows]), _widen(bias[rows]), group, values
        )
        return values

    _multiply(decode, _activations(x, int8), out)


def matvec_affine4(codes: Array, scale: Array, bias: Array, group: int, x: Array, out: Array, int8: bool, threads: int) -> None:
    _affine(codes, scale, bias, group, x, out, int8)


def matvec_affine8(codes: Array, scale: Array, bias: Array, group: int, x: Array, out: Array, int8: bool, threads: int) -> None:
    _affine(codes, scale, bias, group, x, out, int8)


def matvec_symmetric8(codes: Array, scale: Array, group: int, x: Array, out: Array, int8: bool, threads: int) -> None:
    _affine(codes, scale, None, group, x, out, int8)


def matvec_bf16(weights: Array, x: Array, out: Array, threads: int) -> None:
    _multiply(lambda rows: _widen(weights[rows]), x, out)


def matvec_f16(weights: Array, x: Array, out: Array, threads: int) -> None:
    _multiply(lambda rows: weights[rows].view(np.float16).astype(np.float32), x, out)


def matvec_palette4(codes: Array, table: Array, x: Array, out: Array, threads: int) -> None:
    _multiply(lambda rows: table[_nibbles(codes[rows])], x, out)
