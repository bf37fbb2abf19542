"""`palette`: indices of 1, 2, 3, 4, 6 or 8 bits into small tables of values.

    w = table[g][k][v]                                 without a scale
    w = rnd(scale[g] · (table[g][k][v] − offset[g]))   rounded once, to the type of the scale

k is the index, g the group of `group` neighbours along `axis` that share a table (0: one table for all), v the place within
the `vector` neighbours along `vector_axis` that one index names. Groups of 1 may be along `axes` axes from `axis` on: a table
for every place of these, which is decoded alone. Values are float32. docs/formats/palette.md has the layout, the encoder and
its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts, StoredCodes
from flyweight.codecs.palette_frame import Frame, Slab
from flyweight.codecs.value_checks import FLOATS, require_f32, require_finite, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_BITS = (1, 2, 3, 4, 6, 8)
_INTEGERS = {"i8": DType.I8, "u8": DType.U8}
_TABLES = FLOATS | _INTEGERS
_SLAB = 1 << 16  # codes worked on at a time: they and their values stay in the second-level cache; a multiple of 8


@dataclass(frozen=True)
class Palette(Codec):
    bits: int = 4
    group: int = 0
    axis: int = 0
    vector: int = 1
    vector_axis: int = -1
    table: str = "f16"
    scale: str = ""
    offset: str = ""
    scale_per: str = "table"
    axes: int = 1

    name = "palette"
    quantizer: ClassVar[str] = "kmeans"
    copies_if_whole = 3  # as stored, as f32, and the codes of vectors
    takes_f16 = True

    def __post_init__(self) -> None:
        require_one_of(
            self, bits=_BITS, table=_TABLES, scale=("", *FLOATS), offset=("", *_INTEGERS), scale_per=("table", "tensor")
        )
        require_integers(self, "group", zero="the whole tensor")
        require_integers(self, "vector", least=1, most=16)
        require_integers(self, "axis", "vector_axis", least=-1)
        require_integers(self, "axes", least=1, most=8)
        if self.axes > 1 and (self.group != 1 or self.vector > 1 or self.axis < 0):
            raise ValueError("tables along several axes are of groups of 1, of scalars, from an axis counted from the first")
        if self.scale and self.table not in _INTEGERS and self.table != self.scale:
            raise ValueError(f"the scale of a {self.table} table must be {self.table} too, not {self.scale}")
        if self.offset and (self.offset != self.table or not self.scale):
            raise ValueError(f"an offset needs a scale and a table of its own type, not one of {self.table}")

    @property
    def entries(self) -> int:
        return 1 << self.bits

    @property
    def value_dtype(self) -> DType | None:
        """That of the table, or of the scale, to which products are rounded."""
        dtype = _TABLES[self.scale or self.table]
        return dtype if dtype.is_float and dtype is not DType.F32 else None

    # Layout

    def layout(self, spec: TensorSpec) -> Layout:
        frame = self.frame(spec)
        packed = packing.packed_width("little", self.bits, frame.count)
        scales = (*frame.tables, 1, 1) if self.scale_per == "table" else (1,) * (len(spec.shape) + 2)
        layout = {
            "indices": TensorSpec((packed,), DType.U8),
            "tables": TensorSpec((*frame.tables, self.entries, self.vector), _TABLES[self.table]),
        }
        if self.scale:
            layout["scale"] = TensorSpec(scales, FLOATS[self.scale])
        if self.offset:
            layout["offset"] = TensorSpec(scales, _TABLES[self.offset])
        return layout

    def frame(self, spec: TensorSpec) -> Frame:
        rank = len(spec.shape)
        require_f32(self, spec)
        if (last := max(self.axis + self.axes - 1, self.vector_axis)) >= rank:
            raise UnsupportedError(f"{spec} has no axis {last}", code="E_SPEC")
        axis, vector_axis = self.axis % rank, self.vector_axis % rank
        group = self.group
        if group and axis == vector_axis:
            if group % self.vector:
                raise UnsupportedError(f"groups of {group} are not a multiple of vectors of {self.vector}", code="E_SPEC")
            group //= self.vector
        return Frame.of(spec, group, axis, self.vector, vector_axis, self.axes)

    def stored_codes(self, spec: TensorSpec) -> StoredCodes:
        return StoredCodes("indices", self.bits, self.frame(spec).indices)

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        frame, tables, at = self.frame(spec), self.table_values(parts), 0
        values = out.reshape(1, -1)
        for slab in frame.slabs(_SLAB):
            size = slab.indices[0] * slab.length * slab.indices[2]
            self._decode_slab(frame, slab, parts["indices"], tables, values[:, at : at + size])
            at += size

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        frame, tables = self.frame(spec), self.table_values(parts)
        for slab in frame.slabs(_SLAB):
            values = np.empty((1, slab.indices[0] * slab.length * slab.indices[2]), np.float32)
            self._decode_slab(frame, slab, parts["indices"], tables, values)
            yield values[0]

    def _decode_slab(self, frame: Frame, slab: Slab, packed: Array, tables: Array, values: Array) -> None:
        outer, vectors, inner = slab.indices
        codes = self._codes(packed, slab.start, outer * vectors * inner)
        if inner == 1 and slab.length == vectors * self.vector:
            flat = tables.reshape(len(tables), -1)
            kernels.palette_decode(codes, flat, self.vector, frame.run, frame.cycle, slab.start, values)
            return
        # The elements of a vector are not neighbours: one after the other, each from its own column of the tables.
        elements, column = values.reshape(outer, slab.length, inner), np.empty(codes.shape, np.float32)
        for place in range(self.vector):
            own = np.ascontiguousarray(tables[:, :, place])
            kernels.palette_decode(codes, own, 1, frame.run, frame.cycle, slab.start, column)
            target = elements[:, place :: self.vector]
            target[...] = column.reshape(slab.indices)[:, : target.shape[1]]

    def _codes(self, packed: Array, start: int, count: int) -> Array:
        """(1, count) indices from `start` on."""
        first, skipped = start // 8 * self.bits, start % 8
        width = packing.packed_width("little", self.bits, skipped + count)
        return packing.unpack("little", packed[None, first : first + width], self.bits, skipped + count)[:, skipped:]

    def table_values(self, parts: Parts) -> Array:
        """What the stored entries mean. (tables, entries, vector) float32"""
        return self._meant(parts["tables"].reshape(-1, self.entries, self.vector), parts.get("scale"), parts.get("offset"))

    def _meant(self, tables: Array, scale: Array | None, offset: Array | None) -> Array:
        with np.errstate(all="ignore"):
            wide: Array = tables.astype(np.float32, order="C")
            if scale is None:
                return wide
            if offset is not None:
                wide -= offset.astype(np.float32).reshape(-1, 1, 1)
            # Exact before the one rounding, or rounded by it: two narrow numbers have a product of at most 22 bits.
            product = wide * scale.astype(np.float32).reshape(-1, 1, 1)
            return product.astype(FLOATS[self.scale].numpy).astype(np.float32)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        """Tables are full, so every index has an entry."""
        complaint = super().check_values(spec, parts)
        if complaint is None and not np.isfinite(self.table_values(parts)).all():
            return "a table entry times its scale is infinite"
        return complaint

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        if self.scale or self != Palette(bits=4, table=self.table):
            return None
        table = parts["tables"].reshape(-1).astype(np.float32)
        return kernels.matrix("palette4", codes=parts["indices"].reshape(spec.rows, -1), table=table)

    # Codes that whoever knows better has chosen

    has_lines = True

    def alone(self, spec: TensorSpec) -> int:
        """Where a table is of some rows."""
        if self.vector > 1 or self.axes > 1 or len(spec.shape) != 2 or not spec.size:
            return 0
        tables = self.frame(spec).tables
        return spec.columns if prod(tables) == tables[0] else 0

    def with_codes(self, tables: Parts, codes: Array) -> Parts:
        """The parts for stored tables and a code for each element, in the order of the tensor."""
        return {"indices": packing.pack("little", codes.reshape(1, -1), self.bits).reshape(-1), **tables}

    # Encoding

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """Entries at equal distances from the least to the greatest value of a group; in vectors, the grid of such points."""
        frame = self.frame(spec)
        given = np.asarray(array).reshape(spec.shape)
        return self.fill(frame, given, self._uniform(frame, given))

    def finite_points(self, frame: Frame, array: Array, positions: slice) -> Array:
        points = frame.points(array, positions)  # beyond f32 is infinite, and refused
        require_finite(np.isfinite(points).all())
        return points

    def fill(self, frame: Frame, array: Array, tables: Array) -> Parts:
        """The parts for wanted tables (tables, entries, vector), each scalar one ascending: entries are rounded to their
        stored type first, codes are then the nearest to what will be decoded."""
        parts = self.stored_tables(frame.spec, tables)
        nearest = self._nearest_scalars if self.vector == 1 else self._nearest_vectors
        return {"indices": nearest(frame, array, self.table_values(parts)), **parts}

    def stored_tables(self, spec: TensorSpec, tables: Array) -> Parts:
        """The parts beside the indices, for wanted tables (tables, entries, vector)."""
        layout, stored = self.layout(spec), self._representable(tables)
        return {name: stored[name].reshape(part.shape) for name, part in layout.items() if name in stored}

    def _nearest_scalars(self, frame: Frame, array: Array, tables: Array) -> Array:
        """The packed codes of the nearest entries."""
        entries = tables[:, :, 0].astype(np.float64)
        midpoints = ((entries[:, :-1] + entries[:, 1:]) / 2).astype(np.float32)
        flat = array.reshape(-1)
        packed = np.zeros(packing.packed_width("little", self.bits, frame.count), np.uint8)
        for start in range(0, frame.count, _SLAB):
            values = astype(flat[start : start + _SLAB], DType.F32.numpy)[None]
            codes = np.empty(values.shape, np.uint8)
            kernels.palette_nearest(values, midpoints, frame.run, frame.cycle, start, codes)
            some = packing.pack("little", codes, self.bits)[0]
            packed[start // 8 * self.bits :][: some.size] = some
        return packed

    def _nearest_vectors(self, frame: Frame, array: Array, tables: Array) -> Array:
        codes = np.zeros(frame.count, np.uint8)
        for piece in frame.pieces():
            points = frame.points(array, piece.positions)
            some = np.empty((len(points), 1), np.uint8)
            per_table = len(points) // (piece.tables.stop - piece.tables.start)
            for at, table in enumerate(tables[piece.tables]):
                own = slice(at * per_table, (at + 1) * per_table)
                kernels.palette_nearest_vector(points[own], table, kernels.PALETTE_THREADS, some[own])
            frame.put(codes, piece.positions, some)
        return packing.pack("little", codes[None], self.bits).reshape(-1)

    def _uniform(self, frame: Frame, array: Array) -> Array:
        levels = _root(self.entries, self.vector)
        if levels < 2:
            raise UnsupportedError(
                f"{self.bits} bits are too few for a uniform table of vectors of {self.vector}",
                code="E_NO_ENCODER",
                hint="use kmeans",
            )
        count = prod(frame.tables)
        ends = np.repeat([[np.inf], [-np.inf]], count, axis=1)
        for piece in frame.pieces():
            points = self.finite_points(frame, array, piece.positions).reshape(piece.tables.stop - piece.tables.start, -1)
            ends[0, piece.tables] = np.minimum(ends[0, piece.tables], points.min(axis=1))
            ends[1, piece.tables] = np.maximum(ends[1, piece.tables], points.max(axis=1))
        ends[:, ends[0] > ends[1]] = 0  # of no points
        if self.table in FLOATS and not self.scale:  # the ends as they will be stored, so that encoding again moves nothing
            ends = self._round(ends, self.table).astype(np.float64)
        low, high = ends[:, :, None] + 0.0  # every zero positive
        with np.errstate(invalid="ignore"):  # ends beyond the range of the table are refused when it is stored
            line = low + (high - low) * (np.arange(levels) / (levels - 1))
        tables = np.zeros((count, self.entries, self.vector))
        used = np.arange(levels**self.vector)
        for place in range(self.vector):
            tables[:, used, place] = line[:, used // levels**place % levels]
        return tables

    def _representable(self, tables: Array) -> dict[str, Array]:
        """Tables, scales and offsets as stored."""
        parts = self._scales(tables) if self.scale else {}
        if self.scale:
            step = parts["scale"].astype(np.float64)[:, None, None]
            tables = np.divide(tables, step, out=np.zeros_like(tables), where=step > 0)
        if self.offset:
            tables = tables + parts["offset"].astype(np.float64)[:, None, None]
        parts["tables"] = self._integers(tables) if self.table in _INTEGERS else self._round(tables, self.table)
        if not np.isfinite(self._meant(parts["tables"], parts.get("scale"), parts.get("offset"))).all():
            raise UnsupportedError("the weights are too large for the table", code="E_RANGE", hint="use f32 tables")
        return parts

    def _scales(self, tables: Array) -> dict[str, Array]:
        """A scale makes the greatest magnitude 127 in a table of i8, 255 in one of u8 and 1 in one of floats; with an offset
        the range of the entries, zero included, has 255 steps."""
        shared = (1, 2) if self.scale_per == "table" else (0, 1, 2)
        low = np.atleast_1d(tables.min(axis=shared, initial=0))
        high = np.atleast_1d(tables.max(axis=shared, initial=0))
        if not self.offset:
            steps = {"i8": 127, "u8": 255}.get(self.table, 1)
            return {"scale": self._round(np.maximum(high, -low) / steps, self.scale)}
        scale, least = self._round((high - low) / 255, self.scale), -128 if self.table == "i8" else 0
        wide = scale.astype(np.float64)
        begin = np.divide(low, wide, out=np.zeros_like(low), where=wide > 0)
        offset = np.rint(np.clip(least - begin, least, least + 255))
        return {"scale": scale, "offset": offset.astype(_TABLES[self.offset].numpy)}

    def _integers(self, tables: Array) -> Array:
        low, high = (-128, 127) if self.table == "i8" else (0, 255)
        rounded = np.rint(tables)
        if self.table == "u8" and not self.offset and (rounded < 0).any():
            raise UnsupportedError("a table of u8 without an offset has no negative entries", code="E_RANGE", hint="use i8")
        if not self.scale and ((rounded < low) | (rounded > high)).any():
            raise UnsupportedError(f"the weights are too large for {self.table} without a scale", code="E_RANGE")
        least = -high if self.table == "i8" and self.scale and not self.offset else low
        return np.clip(rounded, least, high).astype(_INTEGERS[self.table].numpy)

    def _round(self, wide: Array, kind: str) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return wide.astype(FLOATS[kind].numpy)


def _root(number: int, degree: int) -> int:
    """The greatest whole number whose power is not above `number`."""
    return max(base for base in range(1, number + 1) if base**degree <= number)
