"""Products with stored weights: f(x) · Wᵀ straight from their packed form, docs/formats/matvec.md.

The definitions say what a product means: decode some rows, multiply in f32. Native kernels equal them only within the bound
derived there, because sums of floats depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flyweight.kernels.checks import F32, Array, check
from flyweight.kernels.products.activations import ACTIVATIONS, normalize, quantize_few, quantize_many
from flyweight.kernels.products.matrix import Matrix, require
from flyweight.kernels.products.stored_matrix import WOVEN, Stored, decode_rows, woven_rows
from flyweight.kernels.registry import active, kernel
from flyweight.kernels.weaving import rotate, rotation_signs

PRODUCTS = ("multiply", "gated")
"""The kernels that are held to a bound, not to equal bits."""

SLAB = 1 << 20
"""Weights decoded at a time."""

UNROUNDED = ("f32", "f16", "bf16", "palette4", "e4m3", "hqq4", "hqq8")
"""Forms whose weights are not whole numbers times a scale of their row: their activations stay f32."""


IN_BYTE = {
    **dict.fromkeys(("affine4", "stepped4", "tabled4", "e2m1"), 2),
    **dict.fromkeys(("affine2", "stepped2", "tabled2"), 4),
}
"""Neighbouring codes that share a byte; in other forms none do."""


MANY = 12
"""From so many activations on, weights are put ready for all of them."""


def _rounded(x: Array, form: str) -> Array:
    """x as its codes stand for it."""
    codes, scale = quantize_few(x, IN_BYTE.get(form, 1)) if len(x) < MANY else quantize_many(x)
    return np.asarray(codes.astype(np.float32) * scale)


def _product(matrix: Stored, x: Array, int8: bool) -> Array:
    if matrix.form in WOVEN:
        x = rotate(x * np.float32(0.125) * rotation_signs(matrix.columns))
    x = _rounded(x, matrix.form) if int8 and matrix.form not in UNROUNDED else x
    out = np.empty((len(x), matrix.rows), np.float32)
    step = max(1, SLAB // max(1, matrix.columns))
    for start in range(0, matrix.rows, step):
        here = slice(start, min(start + step, matrix.rows))
        weights = woven_rows(matrix, np.arange(matrix.rows)[here]) if matrix.form in WOVEN else decode_rows(matrix, here)
        out[:, here] = x @ weights.T
    return out


@kernel
def _multiply(
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


@kernel
def _gated(
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


# Checked --------------------------------------------------------------------------------------


def multiply(
    matrices: Sequence[Matrix],
    x: Array,
    out: Array,
    *,
    gain: Array | None = None,
    eps: float = 0.0,
    bias: Array | None = None,
    add: bool = False,
    int8: bool = True,
    threads: int = 2,
) -> None:
    """out = f(x) · [W1; W2; …]ᵀ + bias, or out += …; f is RMS normalisation where there is a gain.

    x: f32 (n, columns), out: f32 (n, all rows), gain: f32 (columns,), bias: f32 (all rows,).
    """
    if active() == "reference":
        _check_products(matrices, x, out, sum(m.rows for m in matrices), gain, bias, threads)
    try:
        _multiply.run(matrices, x, out, gain=gain, eps=eps, bias=bias, add=add, int8=int8, threads=threads)
    except (TypeError, ValueError, AttributeError):
        _check_products(matrices, x, out, sum(m.rows for m in matrices), gain, bias, threads)  # says it in words
        raise


def gated(
    gate: Matrix,
    up: Matrix,
    x: Array,
    out: Array,
    *,
    activation: str = "silu",
    gain: Array | None = None,
    eps: float = 0.0,
    int8: bool = True,
    threads: int = 2,
) -> None:
    """out = act(f(x) · gateᵀ) ⊙ (f(x) · upᵀ), act being silu or gelu_tanh. Shapes as in `multiply`, out: f32 (n, gate.rows)."""
    if active() == "reference":
        _check_gated(gate, up, x, out, activation, gain, threads)
    try:
        _gated.run(gate, up, x, out, activation=activation, gain=gain, eps=eps, int8=int8, threads=threads)
    except (TypeError, ValueError, AttributeError):
        _check_gated(gate, up, x, out, activation, gain, threads)
        raise


def _check_gated(gate: Matrix, up: Matrix, x: Array, out: Array, activation: str, gain: Array | None, threads: int) -> None:
    _check_products((gate, up), x, out, gate.rows, gain, None, threads)
    require(gate.rows == up.rows, ValueError, f"gate and up differ in rows: {gate.rows}, {up.rows}")
    require(activation in ("silu", "gelu_tanh"), ValueError, f"activation must be silu or gelu_tanh, not {activation!r}")


def _check_products(
    matrices: Sequence[Matrix], x: Array, out: Array, rows: int, gain: Array | None, bias: Array | None, threads: int
) -> None:
    require(len(matrices) > 0, ValueError, "a product needs a matrix")
    columns = matrices[0].columns
    for m in matrices:
        require(m.columns == columns, ValueError, f"matrices differ in columns: {columns}, {m.columns}")
    check("x", x, F32, (None, columns))
    check("out", out, F32, (len(x), rows), written=True)
    for label, vector, length in (("gain", gain, columns), ("bias", bias, rows)):
        if vector is not None:
            check(label, np.reshape(vector, (1, -1)), F32, (1, length))
            require(vector.ndim == 1, ValueError, f"{label} must have one dimension")
    require(len(x) > 0, ValueError, "x has no rows")
    require(1 <= threads <= 256, ValueError, f"threads must be 1 to 256, not {threads}")
