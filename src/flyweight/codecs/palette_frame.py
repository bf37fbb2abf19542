"""How the elements of a tensor meet the indices and tables of a palette."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec

PIECE = 1 << 20
"""Points of a tensor worked on at a time."""


class Piece(NamedTuple):
    """Points that belong to some whole tables, all of one size, or to a part of one table."""

    tables: slice
    positions: slice
    """Along the grouped axis, in indices."""


class Slab(NamedTuple):
    """Neighbours in stored order, which are neighbours in the tensor too."""

    start: int
    """The first index."""
    indices: tuple[int, int, int]
    """Indices before the vector axis, along it, and behind it."""
    length: int
    """Elements along the vector axis."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The shape of a tensor in indices, of which each stands for a point: `vector` neighbours along `vector_axis`.

    Indices in the order they are stored in, row-major, have tables by turns: index i has table i % cycle // run.
    """

    spec: TensorSpec
    vector: int
    vector_axis: int
    axis: int
    """The grouped axis; of a single table, one that can be cut into pieces."""
    span: int
    """Indices along `axis` that share a table."""
    indices: tuple[int, ...]
    axes: int = 1
    """From `axis` on, of which every place has a table of its own; 1: the grouped axis alone."""

    @classmethod
    def of(cls, spec: TensorSpec, group: int, axis: int, vector: int, vector_axis: int, axes: int = 1) -> Frame:
        """`group` counts indices; 0 is one table for all."""
        indices = tuple(-(-n // vector) if at == vector_axis else n for at, n in enumerate(spec.shape))
        if axes > 1:
            return cls(spec, vector, vector_axis, axis, 1, indices, axes)
        if not 0 < group < indices[axis]:
            axis = next((at for at, n in enumerate(indices) if n > 1), 0)
            group = max(indices[axis], 1)
        return cls(spec, vector, vector_axis, axis, group, indices)

    @property
    def count(self) -> int:
        return prod(self.indices)

    @property
    def tables(self) -> tuple[int, ...]:
        """Tables along each axis: 1 except along the grouped ones."""
        grouped = range(self.axis, self.axis + self.axes)
        return tuple(-(-n // self.span) if at in grouped else 1 for at, n in enumerate(self.indices))

    @property
    def cycle(self) -> int:
        return self.count if max(self.tables) <= 1 else prod(self.indices[self.axis :])

    @property
    def run(self) -> int:
        return self.cycle if max(self.tables) <= 1 else self.span * prod(self.indices[self.axis + self.axes :])

    @property
    def per_position(self) -> int:
        """Points at one position of the grouped axis."""
        return prod(n for at, n in enumerate(self.indices) if at != self.axis)

    def pieces(self) -> Iterator[Piece]:
        """All points, table after table, about PIECE at a time."""
        if self.axes > 1:
            raise UnsupportedError("tables along several axes can be decoded, not encoded", code="E_NO_ENCODER")
        step = max(PIECE // max(self.per_position, 1), 1)
        length = self.indices[self.axis] if self.count else 0
        at_once = step // self.span
        whole = length // self.span if at_once else 0
        for table in range(0, whole, max(at_once, 1)):
            last = min(table + at_once, whole)
            yield Piece(slice(table, last), slice(table * self.span, last * self.span))
        for start in range(whole * self.span, length, self.span):
            table, end = start // self.span, min(start + self.span, length)
            for first in range(start, end, step):
                yield Piece(slice(table, table + 1), slice(first, min(first + step, end)))

    def points(self, array: Array, positions: slice) -> Array:
        """The points at some positions of the grouped axis, which comes first, (n, vector) f32; where the last vector is short
        it repeats its last element."""
        axis, vector_axis = self.axis, self.vector_axis
        shape = [positions.stop - positions.start if at == axis else n for at, n in enumerate(self.indices)]
        if axis == vector_axis:
            positions = slice(positions.start * self.vector, positions.stop * self.vector)
        part = array[(slice(None),) * axis + (positions,)]
        length = shape[vector_axis] * self.vector
        if length != part.shape[vector_axis]:
            part = part.take(np.minimum(np.arange(length), part.shape[vector_axis] - 1), vector_axis)
        split = part.reshape(*shape[: vector_axis + 1], self.vector, *shape[vector_axis + 1 :])
        vectors = np.moveaxis(np.moveaxis(split, vector_axis + 1, -1), axis, 0)
        return astype(np.ascontiguousarray(vectors), DType.F32.numpy).reshape(-1, self.vector)

    def put(self, codes: Array, positions: slice, some: Array) -> None:
        """Put the codes of `points` at these positions into `codes`, which has all of them in stored order."""
        part = np.moveaxis(codes.reshape(self.indices), self.axis, 0)[positions]
        part[...] = some.reshape(part.shape)

    def slabs(self, most: int) -> Iterator[Slab]:
        """The tensor in order, about `most` indices at a time."""
        outer, vectors = prod(self.indices[: self.vector_axis]), self.indices[self.vector_axis]
        inner, length = prod(self.indices[self.vector_axis + 1 :]), self.spec.shape[self.vector_axis]
        if self.vector == 1 or (inner == 1 and length % self.vector == 0):  # one line of vectors
            outer, vectors, inner, length = 1, self.count, 1, self.count * self.vector
        step = max(most // max(inner, 1), 1)
        at_once = max(step // max(vectors, 1), 1)
        for row in range(0, outer if self.count else 0, at_once):
            rows = min(at_once, outer - row)
            for first in range(0, vectors, step):
                last = min(first + step, vectors)
                elements = min(last * self.vector, length) - first * self.vector
                yield Slab((row * vectors + first) * inner, (rows, last - first, inner), elements)
