"""`palette`: indices of 1, 2, 3, 4, 6 or 8 bits into small tables of values.

    w = table[g][k][v]                without a scale
    w = rnd(scale[g] · table[g][k][v])    rounded once, to the type of the scale

k is the index, g the group of `group` neighbours along `axis` that share a table (0: one table for all), v the place within
the `vector` neighbours along `vector_axis` that one index names. Values are float32. docs/formats/palette.md has the
layout, the encoder and its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import FLOATS, require_f32, require_finite, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_BITS = (1, 2, 3, 4, 6, 8)
_TABLES = FLOATS | {"i8": DType.I8}
_SLAB = 1 << 16  # codes decoded at a time: they and their values stay in the second-level cache; a multiple of 8


@dataclass(frozen=True, slots=True)
class _Frame:
    """How a tensor's elements meet their indices and tables.

    Indices in table order: the grouped axis first, so that `run` neighbours share a table; else the tensor's own order.
    """

    spec: TensorSpec
    vector: int
    vector_axis: int
    indices: tuple[int, ...]
    """The tensor's shape with its vector axis counted in vectors."""
    order: tuple[int, ...]
    run: int
    tables: tuple[int, ...]
    """Tables along each axis: 1 except along the grouped one."""

    @property
    def count(self) -> int:
        return prod(self.indices)

    @property
    def in_order(self) -> bool:
        """Whether values in table order are the tensor as it lies in memory."""
        return self.order == tuple(range(len(self.indices))) and (
            self.vector == 1 or (self.vector_axis == len(self.indices) - 1 and self.spec.columns % self.vector == 0)
        )

    def to_table_order(self, indices: Array) -> Array:
        return np.ascontiguousarray(indices.reshape(self.indices).transpose(self.order)).reshape(-1)

    def from_table_order(self, indices: Array) -> Array:
        turned = indices.reshape([self.indices[axis] for axis in self.order])
        return np.ascontiguousarray(turned.transpose(np.argsort(self.order))).reshape(-1)

    def points(self, array: Array) -> Array:
        """The vectors in table order, (count, vector) float32; where the last is short it repeats its last element."""
        axis = self.vector_axis
        length = self.indices[axis] * self.vector
        if length != self.spec.shape[axis]:
            array = array.take(np.minimum(np.arange(length), self.spec.shape[axis] - 1), axis)
        split = array.reshape(*self.indices[: axis + 1], self.vector, *self.indices[axis + 1 :])
        vectors = np.moveaxis(split, axis + 1, -1).transpose(*self.order, len(self.order))
        return np.require(vectors, np.float32, ["C", "A"]).reshape(self.count, self.vector)

    def array(self, points: Array) -> Array:
        """The inverse of `points`."""
        axis = self.vector_axis
        turned = points.reshape(*(self.indices[axis] for axis in self.order), self.vector)
        vectors = turned.transpose(*np.argsort(self.order), len(self.order))
        shape = (*self.indices[:axis], self.indices[axis] * self.vector, *self.indices[axis + 1 :])
        cut = tuple(slice(length) for length in self.spec.shape)
        return np.moveaxis(vectors, -1, axis + 1).reshape(shape)[cut]


@dataclass(frozen=True)
class Palette(Codec):
    bits: int = 4
    group: int = 0
    axis: int = 0
    vector: int = 1
    vector_axis: int = -1
    table: str = "f16"
    scale: str = ""

    name = "palette"
    quantizer: ClassVar[str] = "kmeans"
    copies_if_whole = 4  # the last: the values once more in the order of their tables

    def __post_init__(self) -> None:
        require_one_of(self, bits=_BITS, table=_TABLES, scale=("", *FLOATS))
        require_integers(self, "group", zero="the whole tensor")
        require_integers(self, "vector", least=1, most=16)
        require_integers(self, "axis", "vector_axis", least=-1)
        if self.table == "i8" and not self.scale:
            raise ValueError("a table of i8 needs a scale")
        if self.scale and self.table not in ("i8", self.scale):
            raise ValueError(f"the scale of a {self.table} table must be {self.table} too, not {self.scale}")

    @property
    def entries(self) -> int:
        return 1 << self.bits

    @property
    def value_dtype(self) -> DType | None:
        """That of the table, or of the scale, to which products are rounded."""
        dtype = FLOATS[self.scale or self.table]
        return dtype if dtype is not DType.F32 else None

    # Layout

    def layout(self, spec: TensorSpec) -> Layout:
        frame = self.frame(spec)
        packed = packing.packed_width("little", self.bits, frame.count)
        layout = {
            "indices": TensorSpec((packed,), DType.U8),
            "tables": TensorSpec((*frame.tables, self.entries, self.vector), _TABLES[self.table]),
        }
        if self.scale:
            layout["scale"] = TensorSpec((*frame.tables, 1, 1), FLOATS[self.scale])
        return layout

    def frame(self, spec: TensorSpec) -> _Frame:
        rank = len(spec.shape)
        require_f32(self, spec)
        if max(self.axis, self.vector_axis) >= rank:
            raise UnsupportedError(f"{spec} has no axis {max(self.axis, self.vector_axis)}", code="E_SPEC")
        axis, vector_axis = self.axis % rank, self.vector_axis % rank
        indices = tuple(-(-n // self.vector) if at == vector_axis else n for at, n in enumerate(spec.shape))
        group = self.group
        if group and axis == vector_axis:
            if group % self.vector:
                raise UnsupportedError(f"groups of {group} are not a multiple of vectors of {self.vector}", code="E_SPEC")
            group //= self.vector
        span = group or max(indices[axis], 1)
        tables = tuple(-(-n // span) if at == axis else 1 for at, n in enumerate(indices))
        order = (axis, *(at for at in range(rank) if at != axis)) if tables[axis] > 1 else tuple(range(rank))
        run = span * prod(n for at, n in enumerate(indices) if at != axis)
        return _Frame(spec, self.vector, vector_axis, indices, order, max(run, 1), tables)

    def store(self, frame: _Frame, codes: Array, tables: Array, scale: Array | None) -> Parts:
        """The parts for codes in table order, tables (tables, entries, vector) and a scale each, as stored."""
        layout = self.layout(frame.spec)
        indices = packing.pack("little", frame.from_table_order(codes)[None], self.bits)
        parts = {"indices": indices.reshape(-1), "tables": tables.reshape(layout["tables"].shape)}
        if scale is not None:
            parts["scale"] = scale.reshape(layout["scale"].shape)
        return parts

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        frame = self.frame(spec)
        tables = self._wide(parts["tables"].reshape(-1, self.entries, self.vector), parts.get("scale"))
        flat = np.ascontiguousarray(tables).reshape(len(tables), self.entries * self.vector)
        if frame.in_order:
            self._decode_span(frame, parts["indices"], flat, 0, frame.count, out.reshape(1, -1))
            return
        codes = frame.to_table_order(self._codes(parts["indices"], 0, frame.count))[None]
        points = np.empty((1, frame.count * self.vector), np.float32)
        kernels.palette_decode(codes, flat, self.vector, frame.run, 0, points)
        out[...] = frame.array(points)

    def _decode_span(self, frame: _Frame, packed: Array, tables: Array, first: int, last: int, values: Array) -> None:
        """Elements first (a multiple of 8) to last of a frame in order."""
        for start in range(first, last, _SLAB):
            codes = self._codes(packed, start, min(_SLAB, last - start))
            slab = values[:, (start - first) * self.vector : (start - first + codes.size) * self.vector]
            kernels.palette_decode(codes, tables, self.vector, frame.run, start, slab)

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        frame = self.frame(spec)
        if not frame.in_order:
            yield from super().decoded_runs(spec, parts)
            return
        tables = self._wide(parts["tables"].reshape(-1, self.entries, self.vector), parts.get("scale"))
        flat = np.ascontiguousarray(tables).reshape(len(tables), self.entries * self.vector)
        for start in range(0, frame.count, _SLAB):
            last = min(start + _SLAB, frame.count)
            values = np.empty((1, (last - start) * self.vector), np.float32)
            self._decode_span(frame, parts["indices"], flat, start, last, values)
            yield values[0]

    def _codes(self, packed: Array, start: int, count: int) -> Array:
        """The indices from `start`, a multiple of 8. (1, count)"""
        first = start * self.bits // 8
        width = packing.packed_width("little", self.bits, count)
        return packing.unpack("little", packed[None, first : first + width], self.bits, count)

    def _wide(self, tables: Array, scale: Array | None) -> Array:
        """What the stored entries mean. (tables, entries, vector) float32"""
        with np.errstate(all="ignore"):
            wide: Array = tables.astype(np.float32)
            if scale is None:
                return wide
            # Exact before the one rounding, or rounded by it: two narrow numbers have a product of at most 22 bits.
            product = wide * scale.astype(np.float32).reshape(-1, 1, 1)
            return product.astype(FLOATS[self.scale].numpy).astype(np.float32)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        """Tables are full, so every index has an entry."""
        complaint = super().check_values(spec, parts)
        if complaint is None and not np.isfinite(self._wide(parts["tables"].reshape(-1, 1, 1), self._repeated(parts))).all():
            return "a table entry times its scale is infinite"
        return complaint

    def _repeated(self, parts: Parts) -> Array | None:
        return np.repeat(parts["scale"].reshape(-1), self.entries * self.vector) if self.scale else None

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        if self.scale or self != Palette(bits=4, table=self.table):
            return None
        table = parts["tables"].reshape(-1).astype(np.float32)
        return kernels.matrix("palette4", codes=parts["indices"].reshape(spec.rows, -1), table=table)

    # Encoding

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """Entries at equal distances from the least to the greatest value of a group; in vectors, the grid of such points."""
        frame = self.frame(spec)
        points = self.finite_points(frame, array)
        return self.fill(frame, points, self._uniform(frame, points))

    def finite_points(self, frame: _Frame, array: Array) -> Array:
        with np.errstate(over="ignore"):  # beyond f32 is infinite, and refused
            wide = np.asarray(array, np.float32).reshape(frame.spec.shape)
        require_finite(np.isfinite(wide).all())
        return frame.points(wide)

    def fill(self, frame: _Frame, points: Array, tables: Array) -> Parts:
        """The parts for wanted tables (tables, entries, vector), each scalar one ascending: entries are rounded to their
        stored type first, codes are then the nearest to what will be decoded."""
        stored, scale = self._representable(tables)
        return self.store(frame, self._nearest(frame, points, self._wide(stored, scale)), stored, scale)

    def _uniform(self, frame: _Frame, points: Array) -> Array:
        levels = _root(self.entries, self.vector)
        if levels < 2:
            raise UnsupportedError(
                f"{self.bits} bits are too few for a uniform table of vectors of {self.vector}",
                code="E_NO_ENCODER",
                hint="use kmeans",
            )
        count = prod(frame.tables)
        ends = np.zeros((2, count))
        if points.size:
            starts = np.arange(count) * frame.run * self.vector
            ends[:] = [extreme.reduceat(points.reshape(-1), starts) for extreme in (np.minimum, np.maximum)]
            if not self.scale:  # the ends as they will be stored, so that encoding again moves nothing
                ends = self._round(ends, self.table).astype(np.float64)
        low, high = ends[:, :, None] + 0.0  # every zero positive
        with np.errstate(invalid="ignore"):  # ends beyond the range of the table are refused when it is stored
            line = low + (high - low) * (np.arange(levels) / (levels - 1))
        tables = np.zeros((count, self.entries, self.vector))
        used = np.arange(levels**self.vector)
        for place in range(self.vector):
            tables[:, used, place] = line[:, used // levels**place % levels]
        return tables

    def _representable(self, tables: Array) -> tuple[Array, Array | None]:
        """Tables and scales as stored. A scale makes the greatest magnitude of its table 127, or 1 in a table of floats."""
        scale = None
        if self.scale:
            peak = np.abs(tables).max(axis=(1, 2), initial=0)
            scale = self._round(peak / (127 if self.table == "i8" else 1), self.scale)
            step = scale.astype(np.float64)[:, None, None]
            tables = np.divide(tables, step, out=np.zeros_like(tables), where=step > 0)
        stored = np.rint(np.clip(tables, -127, 127)).astype(np.int8) if self.table == "i8" else self._round(tables, self.table)
        if not np.isfinite(self._wide(stored, scale)).all():
            raise UnsupportedError("the weights are too large for the table", code="E_RANGE", hint="use f32 tables")
        return stored, scale

    def _round(self, wide: Array, kind: str) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return wide.astype(FLOATS[kind].numpy)

    def _nearest(self, frame: _Frame, points: Array, tables: Array) -> Array:
        """The code of the nearest entry for every point, in table order."""
        codes = np.zeros(frame.count, np.uint8)
        if self.vector == 1:
            entries = tables[:, :, 0].astype(np.float64)
            midpoints = ((entries[:, :-1] + entries[:, 1:]) / 2).astype(np.float32)
            kernels.palette_nearest(points.reshape(1, -1), midpoints, frame.run, 0, codes[None])
            return codes
        for table, start in enumerate(range(0, frame.count, frame.run)):
            own = slice(start, start + frame.run)
            with np.errstate(over="ignore"):
                kernels.palette_nearest_vector(points[own], np.ascontiguousarray(tables[table]), codes[own, None])
        return codes


def _root(number: int, degree: int) -> int:
    """The greatest whole number whose power is not above `number`."""
    return max(base for base in range(1, number + 1) if base**degree <= number)
