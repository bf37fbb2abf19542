"""The largest changes alone, as they are; all other weights stay those of the base.

sparsity   the share of the weights that stay; in the header
indices    i64: flat places, ascending
values     f32: what is added there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.deltas.header_numbers import refuse_options, require_share, share_option
from flyweight.deltas.kind import Additive, Array, Elements, Record, StoredArray, require
from flyweight.deltas.largest_changes import Changes, Largest
from flyweight.deltas.stored_places import StoredPlaces, not_finite
from flyweight.foundation.tensor import TensorSpec


class SparseDelta(Additive):
    strategy = "sparse"
    options = frozenset({"sparsity"})
    fields = {"indices": ("int64",), "values": ("float32",)}

    def __init__(self, spec: TensorSpec, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super().__init__(spec, about, arrays)
        require_share(about, "sparsity")
        self._indices, self._values = arrays["indices"], arrays["values"]
        require(
            len(self._indices) == len(self._values), f"there are {len(self._indices)} indices but {len(self._values)} values"
        )
        self._places = StoredPlaces(self._indices, spec.size)

    def check(self) -> None:
        self._places.check()

    def complaint(self) -> str | None:
        return not_finite({"values": self._values})

    def add(self, start: int, stop: int, values: Array) -> None:
        values += 0  # to all of them: −0 becomes 0 in a sum, and the public reader adds zeros where nothing is stored
        own = self._places.within(start, stop)
        kernels.add_at(self._indices[own].reshape(1, -1), start, self._values[own].reshape(1, -1), values.reshape(1, -1))

    @classmethod
    def make(
        cls,
        base: Elements,
        tuned: Elements,
        spec: TensorSpec,
        about: dict[str, Any],
        sparsity: float = 0.9,
        unchanged: bool = False,
        **options: Any,
    ) -> Iterator[Record]:
        """Weights that do not change are left out, even where `sparsity` would have more of them stored. Where all are known to
        be `unchanged`, no weight is read."""
        refuse_options(cls.strategy, options)
        about["sparsity"] = share_option("sparsity", sparsity)
        if unchanged:
            count = min(spec.size, 1)  # readers expect one
            yield Record("indices", "int64", [np.zeros(count, np.int64)])
            yield Record("values", "float32", [np.zeros(count, np.float32)])
            return
        largest = Largest(Changes(base, tuned, spec.size), min(max(1, int(spec.size * (1.0 - sparsity))), spec.size))
        if largest.threshold == 0:
            largest.ties = 0 if largest.greatest else 1
        yield Record("indices", "int64", (kept.places[0].copy() for kept in largest))
        yield Record("values", "float32", (kept.values[0].copy() for kept in largest))
