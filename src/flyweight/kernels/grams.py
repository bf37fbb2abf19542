"""Gram matrices of a model's inputs, some rows at a time.

    out[i − first, j] += Σ over tokens t of  x[t, i] · x[t, j]        first ≤ i < stop, 0 ≤ j < stop

Products and sums are f32 in no certain order; where the processor multiplies bf16, inputs are rounded to that first, which
changes a product by 2⁻⁸ of itself at most.
"""

from __future__ import annotations

from flyweight.kernels.checks import F32, Array, check
from flyweight.kernels.registry import kernel


@kernel
def _add_gram(x: Array, first: int, out: Array) -> None:
    stop = out.shape[1]
    out += x[:, first:stop].T @ x[:, :stop]


def add_gram(x: Array, first: int, out: Array) -> None:
    """`x` has a row for each token; `out` has the rows from `first` on of the lower triangle, up to the diagonal's last."""
    check("x", x, F32, (None, None))
    check("out", out, F32, (None, None), written=True)
    if not 0 <= first == out.shape[1] - len(out) or out.shape[1] > x.shape[1]:
        raise ValueError(f"out is {len(out)} × {out.shape[1]}: not the rows from {first} on of a triangle of {x.shape[1]}")
    _add_gram.run(x, first, out)
