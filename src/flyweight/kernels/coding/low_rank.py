"""Products of low rank, added to a matrix."""

from __future__ import annotations

from flyweight.kernels.checks import F32, Array, check
from flyweight.kernels.registry import kernel


@kernel
def _add_product(left: Array, right: Array, out: Array) -> None:
    """out += left · right, one rank after the other, each product and each sum rounded to f32."""
    for k in range(len(right)):
        out += left[:, k : k + 1] * right[k]


def add_product(left: Array, right: Array, out: Array) -> None:
    """out += left · right, one rank after the other.

    left: f32 (rows, rank), right: f32 (rank, columns), out: f32 (rows, columns).
    """
    check("left", left, F32, (None, None))
    check("right", right, F32, (left.shape[1], None))
    check("out", out, F32, (len(left), right.shape[1]), written=True)
    _add_product.run(left, right, out)
