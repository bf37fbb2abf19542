"""Products with stored weights, in NumPy: decode some rows, multiply in f32. out = f(x) · [W1; W2; …]ᵀ.

These say what a product means; unlike the other kernels, native ones equal them only within the bound derived in
docs/formats/matvec.md, because sums of floats depend on their order.

Nothing is checked here: callers come through `flyweight.kernels`, which has checked the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from flyweight.kernels import reference, reference_affine

__all__: list[str] = []  # named by `flyweight.kernels.PRODUCTS`

Array = np.ndarray[Any, Any]

SLAB = 1 << 20
"""Weights decoded at a time."""


class Stored(Protocol):
    """What a twin reads of `flyweight.kernels.Matrix`."""

    form: str
    parts: tuple[Array, ...]
    rows: int
    columns: int
    length: int


# Decoding -------------------------------------------------------------------------------------


def _nibbles(codes: Array) -> Array:
    """Two codes a byte, the low one first."""
    return np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)


def _widen(values: Array) -> Array:
    """f32 and f16 as they are, u16 as the bf16 it holds."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _blocks(form: str, columns: int, blocks: Array) -> Array:
    size = 256 if form.endswith("_k") else 32
    values = np.empty((blocks.shape[0] * columns // size, size), np.float32)
    getattr(reference, f"decode_{form}")(blocks.reshape(len(values), -1), values)
    return values.reshape(-1, columns)


def _affine(codes: Array, scale: Array, bias: Array) -> Array:
    values = np.empty(codes.shape, np.float32)
    group = codes.shape[1] // scale.shape[1] if scale.shape[1] else 1
    reference_affine.decode_scale_bias(np.ascontiguousarray(codes), 8, _widen(scale), _widen(bias), group, values)
    return values


def _symmetric(codes: Array, scale: Array) -> Array:
    group = codes.shape[1] // scale.shape[1] if scale.shape[1] else 1
    return np.asarray(codes.view(np.int8).astype(np.float32) * np.repeat(_widen(scale), group, axis=1))


def _crumbs(codes: Array) -> Array:
    """Four codes a byte, the low one first."""
    return np.stack([codes >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(len(codes), -1)


def _tabled(codes: Array, table: Array, length: int) -> Array:
    """Signed codes, a byte each, and the entries of every row or the pair of all."""
    entries = np.broadcast_to(table, (len(codes), table.shape[1]))
    scale, zero = (np.ascontiguousarray(entries[:, at::4]).view(np.float32) for at in (2, 3))
    values = np.empty(codes.shape, np.float32)
    span = length or max(codes.shape[1], 1)
    reference_affine.decode_signed_bias(np.ascontiguousarray(codes), 8, scale, zero, span, values)
    return values


DECODERS: dict[str, Callable[..., Array]] = {
    "affine4": lambda codes, scale, bias: _affine(_nibbles(codes), scale, bias),
    "affine8": _affine,
    "symmetric8": _symmetric,
    "palette4": lambda codes, table: table[0][_nibbles(codes)],
    **dict.fromkeys(("f32", "f16", "bf16"), lambda weights, *_: _widen(weights)),
}


TABLED: dict[str, Callable[[Array], Array]] = {
    "tabled4": lambda codes: (_nibbles(codes) ^ np.uint8(8)) - np.uint8(8),
    "tabled2": _crumbs,
}


def rows_of(matrix: Stored, rows: slice) -> list[Array]:
    """The parts of some rows. Every part has a row per row of weights, but for a palette's table and a tensor's one pair."""
    shared = matrix.form == "palette4" or (matrix.form in TABLED and not matrix.length)
    return [part if shared and i == 1 else part[rows] for i, part in enumerate(matrix.parts)]


def decode_rows(matrix: Stored, rows: slice) -> Array:
    """Some rows of a matrix as f32. A mask says nothing that the weights do not."""
    parts = rows_of(matrix, rows)
    if matrix.form in TABLED:
        return _tabled(TABLED[matrix.form](parts[0]), parts[1], matrix.length)
    if matrix.form in DECODERS:
        return DECODERS[matrix.form](*parts)
    return _blocks(matrix.form, matrix.columns, *parts)


# Activations ----------------------------------------------------------------------------------


def normalize(x: Array, gain: Array | None, eps: float) -> Array:
    """x · gain / √(mean x² + eps), or x where there is no gain."""
    if gain is None:
        return x
    mean = np.mean(np.square(x), axis=1, keepdims=True, dtype=np.float32)
    return np.asarray(x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * gain)


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


def _rounded(x: Array) -> Array:
    """x as its int8 codes stand for it."""
    codes, scale = quantize_activations(x)
    return np.asarray(codes.astype(np.float32) * np.repeat(scale, 32, axis=1))


# Products -------------------------------------------------------------------------------------

FLOATS = ("f32", "f16", "bf16", "palette4")
"""Forms whose weights are not whole numbers times a scale: their activations stay f32."""


def _product(matrix: Stored, x: Array, int8: bool) -> Array:
    x = _rounded(x) if int8 and matrix.form not in FLOATS else x
    out = np.empty((len(x), matrix.rows), np.float32)
    step = max(1, SLAB // max(1, matrix.columns))
    for start in range(0, matrix.rows, step):
        here = slice(start, min(start + step, matrix.rows))
        out[:, here] = x @ decode_rows(matrix, here).T
    return out


def multiply(
    matrices: Sequence[Stored],
    x: Array,
    out: Array,
    *,
    gain: Array | None,
    eps: float,
    bias: Array | None,
    add: bool,
    int8: bool,
    threads: int,
) -> None:
    x = normalize(x, gain, eps)
    products = np.concatenate([_product(matrix, x, int8) for matrix in matrices], axis=1)
    if bias is not None:
        products += bias
    if add:
        out += products
    else:
        out[...] = products


def silu(z: Array) -> Array:
    return _sigmoid_times(z, z)


def gelu_tanh(z: Array) -> Array:
    """½z·(1 + tanh u) = z / (1 + e^(−2u)), u = √(2/π)·(z + 0.044715·z³)."""
    return _sigmoid_times(z, np.float32(1.5957691216) * (z + np.float32(0.044715) * z * z * z))


def _sigmoid_times(z: Array, t: Array) -> Array:
    """z / (1 + e^−t); what |t| > 87 would add is below 2⁻¹²⁰ of z."""
    return np.asarray(z / (np.float32(1) + np.exp(-np.clip(t, np.float32(-87), np.float32(87)))))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


def gated(
    gate: Stored,
    up: Stored,
    x: Array,
    out: Array,
    *,
    activation: str,
    gain: Array | None,
    eps: float,
    int8: bool,
    threads: int,
) -> None:
    x = normalize(x, gain, eps)
    out[...] = ACTIVATIONS[activation](_product(gate, x, int8)) * _product(up, x, int8)
