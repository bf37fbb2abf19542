"""`tabled`: codes of 4 signed or 2 unsigned bits; the scale and zero of every run of weights are in a table of 16-byte entries.

    w = scale · q + zero        4 bits: q is −8 … 7, two's complement        2 bits: q is 0 … 3

    codes     u8    a bit stream over the whole tensor, row after row, the first code in the low bits
    entries   u32   a run of `length` weights of a row: id low, id high | 2^31, scale, zero (as f32)
    pair      u32   one for the whole tensor, where `length` is 0: id low, id high, scale, zero

Values are float32; each operation rounds once. A row that is no multiple of `length` ends in a short run. Rows that are no
whole bytes share bytes. docs/formats/tabled.md has the layout and the error bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.affine import Affine
from flyweight.codecs.casts import as_float
from flyweight.codecs.codec import Array, Codec, Filler, Grid, GridSpec, Parts, column_weights
from flyweight.codecs.lines import Lines
from flyweight.codecs.value_checks import require_f32, require_finite, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import Layout, TensorSpec

_RUN = 1 << 63
"""Set in the id of an entry that belongs to a run of weights."""
_HALF = {4: 8, 2: 0}
"""What an unsigned code is more than the signed one it stands for."""


@dataclass(frozen=True)
class Tabled(Codec):
    bits: int = 4
    length: int = 128
    id: int = 0

    name = "tabled"
    per_tensor = frozenset({"id"})
    decodes_any_bytes = False
    quantizer: ClassVar[str] = "anchored"  # docs/decisions/0091
    rounds = True

    def __post_init__(self) -> None:
        require_one_of(self, bits=_HALF)
        require_integers(self, "length", zero="the whole tensor")
        require_integers(self, "id", most=_RUN - 1)

    @property
    def masked_together(self) -> int:
        return self.length

    # Layout

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        whole = spec.columns * self.bits % 8 == 0
        shape = (*spec.shape[:-1], spec.columns * self.bits // 8) if whole else (-(-spec.size * self.bits // 8),)
        codes = TensorSpec(shape, DType.U8)
        if not self.length:
            return {"codes": codes, "pair": TensorSpec((4,), DType.U32)}
        return {"codes": codes, "entries": TensorSpec((*spec.shape[:-1], 4 * -(-spec.columns // self.length)), DType.U32)}

    def frame(self, spec: TensorSpec) -> TensorSpec:
        """The tensor as rows that runs do not leave: one row, where all of it has one pair."""
        return TensorSpec((spec.rows, spec.columns) if self.length else (1, spec.size), DType.F32)

    def _span(self, spec: TensorSpec) -> int:
        return self.length or max(spec.size, 1)

    def _runs(self, spec: TensorSpec) -> tuple[int, int]:
        """Rows of the frame, and runs in one: none, where there are no weights."""
        frame = self.frame(spec)
        return frame.rows, -(-frame.columns // self._span(spec))

    # Stored parts ↔ rows of the frame

    def _parts(self, spec: TensorSpec, packed: Array, scale: Array, zero: Array) -> Parts:
        """The parts for rows of packed codes, each padded to whole bytes, and a scale and a zero for every run."""
        layout, frame = self.layout(spec), self.frame(spec)
        if frame.columns * self.bits % 8 and frame.rows != 1:  # they share bytes
            codes = packing.unpack("little", packed, self.bits, frame.columns)
            packed = packing.pack("little", codes.reshape(1, -1), self.bits)
        table = np.zeros((scale.size if self.length else 1, 4), "<u4")
        table.view("<u8")[:, 0] = self._marked_id
        for at, numbers in ((2, scale), (3, zero)):
            table[: scale.size, at] = np.ascontiguousarray(numbers, np.float32).reshape(-1).view(np.uint32)
        stored = zip(layout.items(), (packed, table), strict=True)
        return {name: np.ascontiguousarray(part).reshape(want.shape) for (name, want), part in stored}

    @cached_property
    def _marked_id(self) -> int:
        return self.id | _RUN if self.length else self.id

    def _table(self, parts: Parts) -> Array:
        return np.require(parts["entries" if self.length else "pair"], "<u4", ["C", "A"]).reshape(-1, 4)

    def _stranger(self, table: Array) -> str | None:
        """A complaint about the first entry that belongs to another tensor, or None."""
        ids = table.view("<u8")[:, 0]
        others = np.flatnonzero(ids != np.uint64(self._marked_id))
        if not others.size:
            return None
        return f"entry {others[0]} has the id {int(ids[others[0]]):#018x}, not {self._marked_id:#018x}"

    def _load(self, spec: TensorSpec, parts: Parts) -> tuple[Array, int, Array, Array]:
        """Rows of codes, the bits of each, and (rows, runs) scale and zero."""
        table, frame = self._table(parts), self.frame(spec)
        if complaint := self._stranger(table):
            raise MalformedError(complaint, code="E_PART_VALUES")
        runs = self._runs(spec)
        scale, zero = (np.ascontiguousarray(table[: prod(runs), at]).view(np.float32).reshape(runs) for at in (2, 3))
        codes = np.require(parts["codes"], np.uint8, ["C", "A"])
        if frame.columns * self.bits % 8 == 0 or frame.rows == 1:
            return codes.reshape(frame.rows, -(-frame.columns * self.bits // 8)), self.bits, scale, zero
        apart = packing.unpack("little", codes.reshape(1, -1), self.bits, frame.size)
        half = np.uint8(_HALF[self.bits])
        return ((apart ^ half) - half).reshape(frame.shape), 8, scale, zero

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """As every codec; MalformedError if an entry belongs to another tensor."""
        self.layout(spec)
        codes, bits, scale, zero = self._load(spec, parts)
        decode = kernels.decode_signed_bias if _HALF[self.bits] else kernels.decode_scale_bias
        decode(codes, bits, scale, zero, self._span(spec), out.reshape(self.frame(spec).shape))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The grid from the least to the greatest value of each run; a code is the nearest point of it, as it is stored."""
        self.layout(spec)
        frame = self.frame(spec)
        rows = as_float(array).reshape(frame.shape)
        packed = np.zeros((frame.rows, -(-frame.columns * self.bits // 8)), np.uint8)
        scale, zero = (np.zeros(self._runs(spec), np.float32) for _ in range(2))
        encode = kernels.encode_signed_bias if _HALF[self.bits] else kernels.encode_scale_bias
        encode(rows, self.bits, self._span(spec), "f32", packed, scale, zero)
        require_finite(not np.isnan(scale).any())
        least, most = -_HALF[self.bits], (1 << self.bits) - 1 - _HALF[self.bits]
        with np.errstate(over="ignore"):
            ends = [scale * np.float32(code) + zero for code in (least, most)]
        if not np.isfinite(ends).all():
            raise UnsupportedError("the weights are too large for f32 scales", code="E_RANGE")
        return self._parts(spec, packed, scale, zero)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        table = self._table(parts)
        if complaint := self._stranger(table):
            return complaint
        with np.errstate(invalid="ignore"):
            bad = np.flatnonzero(~np.isfinite(table[:, 2:].view(np.float32)).all(axis=1))
        if bad.size:
            return f"entry {bad[0]} has NaN or infinite values"
        unused = -spec.size * self.bits % 8
        if unused and int(parts["codes"].reshape(-1)[-1]) >> (8 - unused):
            return "the bits after the last code are not zero"
        return None

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        return self._product(spec, parts)

    def masked_product(self, spec: TensorSpec, parts: Parts, block: int, mask: Array) -> kernels.Matrix | None:
        return self._product(spec, parts, block=block, mask=mask)

    def _product(self, spec: TensorSpec, parts: Parts, **mask: Any) -> kernels.Matrix | None:
        if self.length % 32 and self.length < spec.columns:
            return None
        entries = parts["entries" if self.length else "pair"]
        return kernels.matrix(f"tabled{self.bits}", codes=parts["codes"], entries=entries, length=self.length, **mask)

    # The same grids in the affine codec's bytes: its quantizers fill this codec too

    @cached_property
    def affine(self) -> Affine:
        """Unsigned codes, a scale and a bias for every run of a row of `frame`."""
        return Affine(self.bits, self.length)

    def from_affine(self, spec: TensorSpec, parts: Parts) -> Parts:
        """The parts for what `affine` stores of the frame; what they decode to differs by the rounding of zero alone."""
        frame, half = self.frame(spec), _HALF[self.bits]
        packed, scale, bias = (parts[name].reshape(frame.rows, -1) for name in ("codes", "scale", "bias"))
        codes = packing.unpack("little", packed, self.bits, frame.columns) ^ np.uint8(half)
        zero = (bias.astype(np.float64) + half * scale.astype(np.float64)).astype(np.float32)
        if (constant := scale == 0).any():
            codes[np.repeat(constant, min(self._span(spec), frame.columns), axis=1)[:, : frame.columns]] = 0
        return self._parts(spec, packing.pack("little", codes, self.bits), scale, zero)

    def filled_by(self, filler: Filler, spec: TensorSpec, array: Array, inputs: InputStatistics | None = None) -> Parts:
        if filler.takes(self) or not filler.takes(self.affine):
            return super().filled_by(filler, spec, array, inputs)
        self.layout(spec)
        frame = self.frame(spec)
        if inputs is not None:
            column_weights(inputs.importance, spec)  # refuses what is none
            inputs = inputs.repeated(frame.columns // max(spec.columns, 1))
        return self.from_affine(spec, filler.fill(array, self.affine, frame, inputs))

    searched_by = "clip"

    has_lines = True

    def alone(self, spec: TensorSpec) -> int:
        return self.length

    def lines(self, spec: TensorSpec, parts: Parts) -> Lines:
        _, _, scale, zero = self._load(spec, parts)
        bias = zero - np.float32(_HALF[self.bits]) * scale
        levels = np.arange(1 << self.bits, dtype=np.float32)[None]
        turned = np.ascontiguousarray(scale.T), np.ascontiguousarray(bias.T)
        return Lines(levels, self.length, *turned, DType.F32, has_bias=True)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        return self.from_affine(spec, self.affine.from_lines(self.frame(spec), lines, codes))

    @property
    def grid_spec(self) -> GridSpec | None:
        """None where the rounding of a bias may keep the values from being exactly s · q + b."""
        return GridSpec(self.bits, self.length, "f32") if self.length and not _HALF[self.bits] else None

    def holds_grid(self, grid: GridSpec, columns: int) -> bool:
        own = self.grid_spec
        return own is not None and (own.bits, min(own.group, columns)) == (grid.bits, grid.group or columns)

    def grid(self, spec: TensorSpec, parts: Parts) -> Grid:
        if not self.length:
            return super().grid(spec, parts)
        codes, bits, scale, zero = self._load(spec, parts)
        half = _HALF[self.bits]
        unsigned = packing.unpack("little", codes, bits, spec.columns) + np.uint8(half) & np.uint8((1 << self.bits) - 1)
        with np.errstate(all="ignore"):
            grid = Grid(self.bits, self.length, unsigned, scale, zero - half * scale)
        return self._required(spec, grid, parts)[0]

    def from_grid(self, spec: TensorSpec, grid: Grid) -> Parts:
        if not self.length:
            return super().from_grid(spec, grid)
        return self._required(spec, grid, self.from_affine(spec, self.affine.from_grid(self.frame(spec), grid)))[1]

    def _required(self, spec: TensorSpec, grid: Grid, parts: Parts) -> tuple[Grid, Parts]:
        """Both, if they stand for equal numbers."""
        values = np.empty((spec.rows, spec.columns), np.float32)
        kernels.decode_scale_bias(grid.codes, 8, grid.scale, grid.bias, grid.group, values)
        if not np.array_equal(values, self.decode(spec, parts).reshape(values.shape), equal_nan=True):
            raise UnsupportedError(f"cannot be repacked as {self.spec} without loss: a zero point is not exact", code="E_GRID")
        return grid, parts
