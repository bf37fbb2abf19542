"""Fits a product of two thin matrices to the difference of two arrays.

An array is a matrix here, its last axis the columns. The error of a product is what is left of the difference when the result
is rebuilt, its sums rounded to the type of the base, relative and in Frobenius norms of f32 differences:

    ‖tuned − round(base + scale · up · down)‖ ≤ budget · ‖tuned − base‖

The rows of `down` are a basis of nearly those directions in which the difference D is largest, found by subspace iteration on
DᵀD: a sweep reads D once, a few rows at a time, and keeps columns × width numbers, of which there are at most _BASIS. It takes
4 · rows · columns · width operations. Then up = D · basis, whose rows are made when they are written.

What has no basis worth having is told by the first sweep. Σσ² of the r largest singular values is at most √(r · Σσ⁴), so a
budget needs r ≥ (1 − budget²)² · (Σσ²)² / Σσ⁴, and Σσ⁴ = ‖DᵀD‖² follows from what a random basis becomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import frexp, sqrt
from typing import Any, NamedTuple

import numpy as np

from flyweight.codecs.casts import astype
from flyweight.deltas.kind import Array, Elements, ranges
from flyweight.foundation.errors import ArgumentError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec

NO_LOW_RANK = "E_LOW_RANK"
"""The code of the error for what no product is near to."""
_BASIS = 1 << 22
"""Numbers in a basis: 16 MiB, and at most five arrays of that size are there at once."""
_CHUNKS = 8
_WIDTH, _SPARE, _SWEEPS = 24, 8, 3
"""Directions to begin with, those beyond the ones asked for, without which the last of them converge slowly, and sweeps for
each width."""
_SURE = 0.8
"""How much of the rank that the first sweep says is needed surely is: Σσ⁴ is an estimate."""
_NARROW = 2.0**-8
"""The least budget for f16 factors: rounding both loses 2⁻¹¹ each at most, and leaves three quarters of it to the rank."""
_VISIBLE = 1e-3
"""The least error that is seen in sums of squares: below, f32 products hide it, and only measuring tells."""
_MARGIN = 0.999
"""What of a budget is used: whoever rebuilds sums in another order than the product here does."""
_F32 = np.dtype(np.float32)


class Fit(NamedTuple):
    """The factors of a difference."""

    difference: Difference
    step: float
    """The scale, in units of the difference: a power of two, so that no element of `up` is above 1."""
    basis: Array
    """f32 (columns, rank), orthonormal."""
    down: Array
    """(rank, columns), as it is stored."""
    error: float = 0.0
    """As measured with the factors as they are stored."""

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def scale(self) -> float:
        return self.step * self.difference.unit

    @property
    def nbytes(self) -> int:
        return self.rank * (self.difference.spec.rows + self.difference.spec.columns) * self.down.itemsize

    def rows_of_up(self, rows: Array) -> Array:
        """From rows of the difference, as they are stored."""
        return astype((rows @ self.basis) * _F32.type(1 / self.step), self.down.dtype)

    def up(self) -> Iterator[Array]:
        """All rows of it, some at a time."""
        return map(self.rows_of_up, self.difference.blocks() if self.rank else ())


def highest_rank(spec: TensorSpec, itemsize: int = 2) -> int:
    """The greatest rank whose factors take less than four bits a weight and whose basis is not too large; 0 if none is."""
    if not spec.size:
        return 0
    smaller = (spec.size - 1) // (2 * itemsize * (spec.rows + spec.columns))
    return min(smaller, spec.rows, spec.columns, _BASIS // spec.columns)


def fit(base: Elements, tuned: Elements, spec: TensorSpec, *, budget: float = 0.0, rank: int | None = None) -> Fit | None:
    """The factors of the least rank found within the budget, or of this rank if one is given.

    None if that takes a rank above `highest_rank`: another kind is then smaller or nearer. The factors are f16, or f32 for a
    budget that f16 cannot keep. Where nothing differs, the rank is 0.
    """
    if not (0 < budget < 1 if rank is None else rank >= 1):
        given = f"a budget of {budget}" if rank is None else f"a rank of {rank}"
        raise ArgumentError(f"a low-rank delta needs a budget above 0 and below 1, or a rank of at least 1, not {given}")
    dtype = np.dtype(np.float16 if rank is not None or budget >= _NARROW else np.float32)
    limit = highest_rank(spec, dtype.itemsize)
    if not limit:
        return None
    difference = Difference(base, tuned, spec)
    if not difference.total:
        return Fit(difference, 1.0, np.zeros((spec.columns, 0), _F32), np.zeros((0, spec.columns), dtype))
    if rank is not None:
        return _of_rank(difference, min(rank, limit), dtype)
    return _within(difference, budget, limit, dtype)


def _of_rank(difference: Difference, rank: int, dtype: np.dtype[Any]) -> Fit | None:
    basis = difference.start(min(rank + _SPARE, difference.spec.rows, difference.spec.columns))
    for _ in range(_SWEEPS):
        basis = _orthonormal(difference.sweep(basis).product)
    sweep = difference.sweep(basis)
    return _measured(difference, basis, sweep, rank, dtype)


def _within(difference: Difference, budget: float, limit: int, dtype: np.dtype[Any]) -> Fit | None:
    spec, total = difference.spec, difference.total
    widest = min(limit + _SPARE, spec.rows, spec.columns, max(_BASIS // spec.columns, 1))
    lost = max(budget, _VISIBLE) ** 2 * total
    basis = difference.start(min(_WIDTH, widest))
    sweep = difference.sweep(basis)
    fourth_powers = float(np.square(sweep.product, dtype=np.float64).sum()) * spec.columns / basis.shape[1]
    if limit * fourth_powers < _SURE * (total - lost) ** 2:
        return None
    while True:
        for _ in range(_SWEEPS):
            basis = _orthonormal(sweep.product)
            sweep = difference.sweep(basis)
        kept = np.cumsum(sweep.squares)
        rank, wanted = 0, lost
        while (rank := _next_rank(rank, kept, total - wanted)) <= min(limit, basis.shape[1]):
            found = _measured(difference, basis, sweep, rank, dtype)
            if found is None or found.error <= _MARGIN * budget:
                return found
            wanted *= (_MARGIN * budget / found.error) ** 2
        # None of the others is larger than one in the middle, and those before it are known well.
        middle = basis.shape[1] // 2
        if basis.shape[1] == widest or kept[middle] + (limit - middle) * sweep.squares[middle] < total - lost:
            return None
        more = difference.start(min(2 * basis.shape[1], widest))[:, basis.shape[1] :]
        basis = _orthonormal(np.concatenate([sweep.product, more * _F32.type(sweep.squares[-1])], axis=1))
        sweep = difference.sweep(basis)


def _next_rank(rank: int, kept: Array, wanted: float) -> int:
    """The least rank that keeps what is wanted, but above this one, and by not much where sums tell little."""
    enough = int(np.searchsorted(kept, wanted)) + 1
    return max(rank + 1, min(enough, rank + rank // 4)) if rank else enough


def _measured(difference: Difference, basis: Array, sweep: _Sweep, rank: int, dtype: np.dtype[Any]) -> Fit | None:
    """Factors of this rank and their error. None for weights that no f32 scale fits."""
    turned = np.ascontiguousarray(basis @ sweep.turn[:, :rank].astype(_F32))
    step = 2.0 ** frexp(sqrt(float(sweep.squares[0])))[1]  # no row of D · basis is longer than the greatest singular value
    found = Fit(difference, step, turned, astype(np.ascontiguousarray(turned.T), dtype))
    if not 2.0**-120 < found.scale < 2.0**120:
        return None
    down, left = astype(found.down, _F32) * _F32.type(found.scale), 0.0
    for base, tuned in difference.rows():
        product = astype(found.rows_of_up(difference.of(base, tuned)), _F32) @ down
        sums = astype(astype(base, _F32) + product, _result_type(base.dtype))
        left += float(np.square(astype(tuned, _F32) - astype(sums, _F32), dtype=np.float64).sum())
    return found._replace(error=sqrt(left / difference.total) / difference.unit)


def _result_type(base: np.dtype[Any]) -> np.dtype[Any]:
    """The type that sums are rounded to: that of the base, unless it is too narrow."""
    return base if base.itemsize > 1 else _F32


class _Sweep(NamedTuple):
    """What multiplying a basis with DᵀD gives."""

    product: Array
    squares: Array
    """The squares of the singular values within the basis, greatest first."""
    turn: Array
    """What turns the basis into their directions."""


class Difference:
    """tuned − base, in units of a power of two near its root mean square, so that f32 holds its squares."""

    def __init__(self, base: Elements, tuned: Elements, spec: TensorSpec) -> None:
        self.base, self.tuned, self.spec = base, tuned, spec
        self.unit = 1.0
        total = sum(float(np.square(rows, dtype=np.float64).sum()) for rows in self.blocks())
        if not np.isfinite(total):
            raise UnsupportedError(
                "a difference from the base is not finite, which no product of low rank is", code=NO_LOW_RANK,
                hint="use the strategy 'exact'",
            )  # fmt: skip
        if total:
            self.unit = 2.0 ** max(frexp(sqrt(total / spec.size))[1], -120)
        self.total = total / self.unit**2

    def rows(self) -> Iterator[tuple[Array, Array]]:
        """All rows of base and tuned, some at a time, in their own types."""
        columns, rest = self.spec.columns, None
        for start, stop in ranges(self.spec.size, _CHUNKS):
            pair = self.base(start, stop), self.tuned(start, stop)
            if rest is not None:
                pair = np.concatenate([rest[0], pair[0]]), np.concatenate([rest[1], pair[1]])
            whole = len(pair[0]) // columns * columns
            rest = (pair[0][whole:], pair[1][whole:]) if whole < len(pair[0]) else None
            if whole:
                yield pair[0][:whole].reshape(-1, columns), pair[1][:whole].reshape(-1, columns)

    def of(self, base: Array, tuned: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return (astype(tuned, _F32) - astype(base, _F32)) * _F32.type(1 / self.unit)

    def blocks(self) -> Iterator[Array]:
        """All rows of the difference, some at a time."""
        return (self.of(*pair) for pair in self.rows())

    def start(self, width: int) -> Array:
        """The same random basis for every run."""
        directions = np.random.default_rng(0).standard_normal((width, self.spec.columns), _F32)
        return _orthonormal(np.ascontiguousarray(directions.T))

    def sweep(self, basis: Array) -> _Sweep:
        product = np.zeros(basis.shape, _F32)
        gram = np.zeros((basis.shape[1], basis.shape[1]))
        for rows in self.blocks():
            image = rows @ basis
            product += rows.T @ image
            wide = image.astype(np.float64)
            gram += wide.T @ wide
        squares, turn = np.linalg.eigh(gram)
        return _Sweep(product, np.maximum(squares[::-1], 0.0), turn[:, ::-1])


def _orthonormal(columns: Array) -> Array:
    return np.ascontiguousarray(np.linalg.qr(columns)[0])
