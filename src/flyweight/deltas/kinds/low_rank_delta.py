"""`lowrank`: numbers added to the base that are the product of two thin matrices.

    up      (rows, rank)      float16, float32, or uint16, which are the words of bfloat16
    down    (rank, columns)   likewise
    rank, scale               in the header

    delta = scale · (up · down)

The last axis of an array is its columns, all others its rows. The products are summed one rank after the other from zero, each
product, each sum and the scaling rounded to float32: the bits are the same on every machine, and for every range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.deltas.kind import Additive, Array, Elements, Record, StoredArray, require
from flyweight.deltas.low_rank_fit import NO_LOW_RANK, Fit, fit
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec

MAX_DELTA_RANK = 1 << 16
_AT_ONCE = 1 << 20
"""Numbers of a factor that are f32 at one time."""
_F32 = np.dtype(np.float32)


class LowRankDelta(Additive):
    strategy = "lowrank"
    options = frozenset({"rank"})
    fields = {"up": ("float16", "uint16", "float32"), "down": ("float16", "uint16", "float32")}

    def __init__(self, spec: TensorSpec, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super().__init__(spec, about, arrays)
        rank: Any = about.get("rank")
        scale: Any = about.get("scale")
        require(type(rank) is int and 0 <= rank <= MAX_DELTA_RANK, f"its rank is not an integer of 0 to {MAX_DELTA_RANK}")
        require(type(scale) in (int, float) and -(2.0**127) < scale < 2.0**127, "its scale is not a number that float32 has")
        self.rank, self.scale = rank, float(scale)
        for field, size in (("up", spec.rows * self.rank), ("down", self.rank * spec.columns)):
            require(len(arrays[field]) == size, f"'{field}' has {len(arrays[field])} numbers, not {size}")

    def check(self) -> None:
        for field, array in self.arrays.items():
            for piece in pieces_of(array):
                require(bool(np.isfinite(_numbers(piece)).all()), f"'{field}' has a number that is not finite")

    def add(self, start: int, stop: int, values: Array) -> None:
        if not self.rank:
            return
        delta = np.zeros(stop - start, _F32)
        with np.errstate(all="ignore"):
            for first, last in _runs(start, stop, self.spec.columns, max(1, _AT_ONCE // self.rank)):
                self._add_product(first, last, delta[first - start : last - start])
            delta *= _F32.type(self.scale)
            values += delta

    def _add_product(self, start: int, stop: int, out: Array) -> None:
        """A piece of one row, or some whole rows."""
        columns, rank = self.spec.columns, self.rank
        row, column = divmod(start, columns)
        width = min(columns, stop - start)
        out = out.reshape(-1, width)
        up = _numbers(self.arrays["up"][row * rank : (row + len(out)) * rank]).reshape(-1, rank)
        step = max(1, _AT_ONCE // width)
        for first in range(0, rank, step):
            last = min(first + step, rank)
            kernels.add_product(np.ascontiguousarray(up[:, first:last]), self._down(first, last, column, width), out)

    def _down(self, first: int, last: int, column: int, width: int) -> Array:
        down, columns = self.arrays["down"], self.spec.columns
        if width == columns:
            return _numbers(down[first * columns : last * columns]).reshape(-1, columns)
        return np.stack([_numbers(down[at : at + width]) for at in range(first * columns + column, last * columns, columns)])

    @classmethod
    def make(cls, base: Elements, tuned: Elements, spec: TensorSpec, about: dict[str, Any], **options: Any) -> Iterator[Record]:
        """Options: `budget` or `rank`, as `fit` takes them; or `fitted`, what it returned; or `stored`, a delta of this kind
        whose factors are taken as they are. UnsupportedError if nothing fits. The header says the error of a fit, too."""
        if "stored" in options:
            yield from options["stored"].records(about)
            return
        found: Fit | None = options["fitted"] if "fitted" in options else fit(base, tuned, spec, **options)
        if found is None:
            raise UnsupportedError(
                "no product of low rank is near enough and takes less than four bits a weight", code=NO_LOW_RANK,
                hint="allow a larger budget, or use the strategy 'exact'",
            )  # fmt: skip
        about |= {"rank": found.rank, "scale": found.scale, "error": found.error}
        yield Record("up", found.down.dtype.name, (rows.reshape(-1) for rows in found.up()))
        yield Record("down", found.down.dtype.name, [found.down.reshape(-1)])

    def records(self, about: dict[str, Any]) -> Iterator[Record]:
        """What is stored, bit for bit, to be stored again."""
        about |= {"rank": self.rank, "scale": self.scale}
        for field in self.fields:
            yield Record(field, self.arrays[field].dtype.name, pieces_of(self.arrays[field]))


def _numbers(stored: Array) -> Array:
    return astype(stored.view(DType.BF16.numpy) if stored.dtype == np.uint16 else stored, _F32)


def pieces_of(array: StoredArray) -> Iterator[Array]:
    """All of a stored array, some of it at a time."""
    return (array[start : start + _AT_ONCE] for start in range(0, len(array), _AT_ONCE))


def _runs(start: int, stop: int, columns: int, rows: int) -> Iterator[tuple[int, int]]:
    """A range as pieces of a row and runs of whole rows, so many at most."""
    while start < stop:
        whole = 0 if start % columns else min((stop - start) // columns, rows)
        end = start + whole * columns if whole else min(stop, start - start % columns + columns)
        yield start, end
        start = end
