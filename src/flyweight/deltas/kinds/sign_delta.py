"""One bit a weight: the sign of its change. The size is that of the row's mean change.

n_elements     how many weights; in the header, like
n_cols         how many in a row: those of one index of the first axis, or all of an array of one axis or none
scales         f16 (rows): the mean magnitude of the changes
packed_signs   u8: a bit for each weight, in the order of the array and high bits first; set for + scale, clear for − scale
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.deltas.header_numbers import refuse_options, require_count
from flyweight.deltas.kind import Additive, Array, Elements, Record, StoredArray, require
from flyweight.deltas.largest_changes import BEYOND_F16, NOT_FINITE, Changes, not_stored
from flyweight.deltas.stored_places import not_finite
from flyweight.foundation.tensor import TensorSpec


class SignDelta(Additive):
    strategy = "quantized"
    fields = {"scales": ("float16",), "packed_signs": ("uint8",)}

    def __init__(self, spec: TensorSpec, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super().__init__(spec, about, arrays)
        self._scales, self._packed = arrays["scales"], arrays["packed_signs"]
        rows, self._columns = _rows_and_columns(spec)
        require_count(about, "n_elements", spec.size)
        nbytes = -(-spec.size // 8)
        require(len(self._packed) == nbytes, f"{len(self._packed)} bytes of signs are stored for {spec.size} weights")
        if spec.size:  # of nothing, writers differ in what they call rows, and in the means of these
            require_count(about, "n_cols", self._columns)
            require(len(self._scales) == rows, f"{len(self._scales)} scales are stored for {rows} rows")

    def complaint(self) -> str | None:
        return not_finite({"scales": self._scales}) if self.spec.size else None

    def add(self, start: int, stop: int, values: Array) -> None:
        first, last = start // self._columns, -(-stop // self._columns)
        scales = astype(self._scales[first:last], np.dtype(np.float32)).reshape(1, -1)
        packed = self._packed[start // 8 : -(-stop // 8)].reshape(1, -1)
        kernels.add_signs(packed, start % self._columns, self._columns, scales, values.reshape(1, -1))

    @classmethod
    def make(cls, base: Elements, tuned: Elements, spec: TensorSpec, about: dict[str, Any], **options: Any) -> Iterator[Record]:
        refuse_options(cls.strategy, options)
        _, columns = _rows_and_columns(spec)
        about["n_elements"], about["n_cols"] = spec.size, columns
        changes = Changes(base, tuned, spec.size)
        yield Record("scales", "float16", _scales(changes, columns))
        yield Record("packed_signs", "uint8", (np.packbits(delta[0] >= 0) for _, delta in changes))


def _rows_and_columns(spec: TensorSpec) -> tuple[int, int]:
    """No rows of one column for an array of nothing: nobody divides by that."""
    if not spec.size:
        return 0, 1
    rows = spec.shape[0] if len(spec.shape) > 1 else 1
    return rows, spec.size // rows


def _scales(changes: Changes, columns: int) -> Iterator[Array]:
    """The mean magnitude of each row, in pieces."""
    unfinished = np.zeros(0)
    """The sum, so far, of a row that goes on in the next range."""
    for start, delta in changes:
        stop = start + delta.shape[1]
        sums = np.zeros((1, -(-stop // columns) - start // columns))
        sums[0, : len(unfinished)] = unfinished
        kernels.magnitude_sums(delta, start % columns, columns, sums)
        finished = stop // columns - start // columns
        unfinished = sums[0, finished:]
        if not np.isfinite(sums).all():
            raise not_stored(NOT_FINITE)
        with np.errstate(over="ignore"):
            scales = (sums[0, :finished] / columns).astype(np.float16)
        if not np.isfinite(scales).all():
            raise not_stored(BEYOND_F16)
        yield scales
