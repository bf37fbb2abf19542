"""`affine`: uniform quantization to integers of 1 to 8 bits, with a scale for each group of a row.

    form         stored beside the codes    value                       codes
    scale_bias   scale, bias                w = s · q + b               unsigned
    scale_zero   scale, zero                w = s · (q − z)             unsigned
    symmetric    scale                      w = s · q                   two's complement

A group is `group` neighbours along `axis` (0: all of them); the last one may be short. Values are
float32: stored numbers are widened exactly, then each operation above rounds once, in the order
written. docs/formats/affine.md has the layout and the error bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Grid, GridSpec, Parts, column_weights
from flyweight.codecs.lines import Lines, Zeros
from flyweight.codecs.value_checks import FLOATS, require_f32, require_finite, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_GROUP_PARTS = {"scale_bias": ("scale", "bias"), "scale_zero": ("scale", "zero"), "symmetric": ("scale",)}
_F32 = DType.F32.numpy
_WORDS = {"u8": DType.U8, "u32": DType.U32}


@dataclass(frozen=True)
class Affine(Codec):
    """`word` is the element type that holds the packed codes; a row is padded with zeros to whole words."""

    bits: int = 4
    group: int = 64
    form: str = "scale_bias"
    scale: str = "f32"
    packing: str = "little"
    word: str = "u8"
    axis: int = -1

    name = "affine"
    rounds = True

    def __post_init__(self) -> None:
        require_integers(self, "bits", least=1, most=8)
        require_integers(self, "group", zero="the whole row")
        require_integers(self, "axis", least=-1, most=63)
        require_one_of(self, form=_GROUP_PARTS, scale=FLOATS, word=_WORDS, packing=packing.PACKINGS)
        if not packing.supports(self.packing, self.bits):
            raise ValueError(f"packing {self.packing} has no order for {self.bits} bits")

    @property
    def quantizer(self) -> str:
        """docs/decisions/0004, 0031."""
        return "anchored" if self.form == "scale_bias" and self.bits <= 2 else "nearest"

    @property
    def levels(self) -> int:
        """The number of steps of the grid: the largest unsigned code."""
        return (1 << self.bits) - 1

    @property
    def half(self) -> int:
        """The unsigned code of zero in a symmetric grid."""
        return 1 << self.bits - 1

    # Layout: every part has the tensor's shape with the grouped axis replaced.

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec, 0)
        shape = _shape(spec)
        if self.axis >= len(shape):
            raise UnsupportedError(f"{spec} has no axis {self.axis}", code="E_SPEC")
        columns, word = shape[self.axis], _WORDS[self.word]
        words = -(-packing.packed_width(self.packing, self.bits, columns) // word.itemsize)
        groups = TensorSpec(self._resized(shape, -(-columns // self.span(columns))), FLOATS[self.scale])
        return {"codes": TensorSpec(self._resized(shape, words), word)} | dict.fromkeys(_GROUP_PARTS[self.form], groups)

    def span(self, columns: int) -> int:
        """Columns per group."""
        return self.group or max(columns, 1)

    def _resized(self, shape: tuple[int, ...], length: int) -> tuple[int, ...]:
        """A shape with another length along the grouped axis."""
        at = self.axis % len(shape)
        return (*shape[:at], length, *shape[at + 1 :])

    def _as_rows(self, array: Array) -> Array:
        """The grouped axis last, all others flattened."""
        turned = array if self.axis == -1 else np.moveaxis(array, self.axis, -1)
        return np.ascontiguousarray(turned).reshape(prod(turned.shape[:-1]), turned.shape[-1])

    def _from_rows(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of `_as_rows`."""
        at = self.axis % len(shape)
        turned = rows.reshape(*shape[:at], *shape[at + 1 :], shape[at])
        return np.ascontiguousarray(np.moveaxis(turned, -1, at))

    # Stored parts ↔ rows. Here codes are unsigned and every form has an offset: the bias, the zero, or (symmetric,
    # once the sign bit is flipped) the constant `half`.

    def store(self, spec: TensorSpec, codes: Array, scale: Array, offset: Array) -> Parts:
        """The parts for codes (rows, columns), scale and offset (rows, groups)."""
        stored = codes ^ np.uint8(self.half) if self.form == "symmetric" else codes
        packed, layout = packing.pack(self.packing, stored, self.bits), self.layout(spec)
        padded = self.packed_rows(layout["codes"], len(packed))
        padded[:, : packed.shape[1]] = packed
        return self.packed_parts(layout, padded, scale, offset)

    def packed_rows(self, codes: TensorSpec, rows: int) -> Array:
        """Zeros for rows of packed codes, padded to whole words."""
        return np.zeros((rows, codes.shape[self.axis] * codes.dtype.itemsize), np.uint8)

    def packed_parts(self, layout: Layout, packed: Array, scale: Array, offset: Array) -> Parts:
        """The parts for rows of packed codes, scale and offset (rows, groups)."""
        rows = {"codes": packed.view(_WORDS[self.word].numpy), "scale": scale, "bias": offset, "zero": offset}
        return {part: self._from_rows(astype(rows[part], want.dtype.numpy), want.shape) for part, want in layout.items()}

    def _load(self, spec: TensorSpec, parts: Parts) -> tuple[Array, Array, Array]:
        """The inverse of `store`, scale and offset widened to float32."""
        words = self._as_rows(parts["codes"])
        codes = packing.unpack(self.packing, words.view(np.uint8), self.bits, _shape(spec)[self.axis])
        if self.form == "symmetric":
            codes ^= np.uint8(self.half)
        wide = self._wide(parts)
        return codes, wide[0], wide[1] if len(wide) == 2 else np.full_like(wide[0], self.half)

    def _wide(self, parts: Parts) -> list[Array]:
        """What is stored beside the codes, as float32 rows."""
        return [self._as_rows(astype(parts[part], _F32)) for part in _GROUP_PARTS[self.form]]

    def f16_bound(self, spec: TensorSpec, parts: Parts) -> float | None:
        """Scales of f16 are whole numbers of its smallest step, and so are the values; bf16 scales must be larger than that."""
        if self.form == "scale_zero" or self.scale == "f32" or not spec.size:
            return None
        scale, *bias = (float(np.abs(wide).max()) for wide in self._wide(parts))
        if self.scale == "bf16" and not scale >= 2.0**-14:
            return None
        return sum(bias, scale * (self.half if self.form == "symmetric" else self.levels))

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        columns = _shape(spec)[self.axis]
        shape = (prod(self._resized(_shape(spec), 1)), columns)
        values = out.reshape(shape) if self.axis == -1 else np.empty(shape, out.dtype)
        self._decode_rows(spec, parts, values)
        if self.axis != -1:
            out[...] = self._from_rows(values, _shape(spec)).reshape(spec.shape)

    def _decode_rows(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        if self.packing == "little":  # straight from the stored bits
            packed = self._as_rows(parts["codes"]).view(np.uint8)
            decode = getattr(kernels, f"decode_{self.form}")
            decode(packed, self.bits, *self._wide(parts), self.span(out.shape[1]), out)
            return
        self._decode_codes(*self._load(spec, parts), out)

    def _decode_codes(self, codes: Array, scale: Array, offset: Array, out: Array) -> None:
        """Values of unsigned codes, one a byte."""
        decode = kernels.decode_scale_bias if self.form == "scale_bias" else kernels.decode_scale_zero
        decode(codes, 8, scale, offset, self.span(out.shape[1]), out)

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The grid from the least to the greatest value of each group (symmetric: ± the greatest magnitude).

        Scale and offset are rounded to their stored type first; a code is then the nearest point of
        the grid that will be decoded.
        """
        if self.packing == "little" and self.form != "scale_zero":
            return self._encode_fused(spec, array)
        rows = self.finite_rows(spec, array)
        scale, offset = self.representable(*self.span_of(rows))
        return self.store(spec, self.nearest_codes(rows, scale, offset), scale, offset)

    def _encode_fused(self, spec: TensorSpec, array: Array) -> Parts:
        """What `encode` says, by one kernel: fit, round, nearest codes, packed."""
        layout, rows = self.layout(spec), self.rows(spec, array, keep=DType.BF16)
        columns = rows.shape[1]
        span = self.span(columns)
        packed = self.packed_rows(layout["codes"], len(rows))
        scale, offset = (np.full((len(rows), -(-columns // span)), self.half, np.float32) for _ in range(2))
        if self.form == "symmetric":
            kernels.encode_symmetric(rows, self.bits, span, self.scale, packed, scale)
        else:
            kernels.encode_scale_bias(rows, self.bits, span, self.scale, packed, scale, offset)
        require_finite(not np.isnan(scale).any())
        return self.packed_parts(layout, packed, *self.representable(scale, offset))

    def rows(self, spec: TensorSpec, array: Array, keep: DType = DType.F32) -> Array:
        """A tensor as rows, (rows, columns): of float32, or of the type to keep where it is that already."""
        given = np.asarray(array)
        rows = astype(given, keep.numpy if given.dtype == keep.numpy else _F32)
        return self._as_rows(np.require(rows, requirements=["C", "A"]).reshape(_shape(spec)))

    def finite_rows(self, spec: TensorSpec, array: Array) -> Array:
        """A tensor as float32 rows, (rows, columns), all finite."""
        self.layout(spec)  # refuses what cannot be stored
        rows = self.rows(spec, array)
        require_finite(np.isfinite(rows).all())
        return rows

    def weight_rows(self, spec: TensorSpec, importance: Array | None) -> Array:
        """Importance in the shape of `finite_rows`; one row where it is the same for all."""
        weights = column_weights(importance, spec)
        if self.axis == -1:
            return weights[None, :]
        return self._as_rows(np.broadcast_to(weights, _shape(spec)))

    def row_values(self, codes: Array, scale: Array, offset: Array) -> Array:
        """What rows of codes decode to."""
        values = np.empty(codes.shape, np.float32)
        self._decode_codes(codes, scale.astype(np.float32), offset.astype(np.float32), values)
        return values

    def extremes(self, rows: Array) -> tuple[Array, Array]:
        """The least and the greatest value of each group, (rows, groups)."""
        starts = np.arange(0, rows.shape[1], self.span(rows.shape[1]))
        # Which zero is the least of +0 and −0 differs between processors; adding +0 makes every zero positive.
        low, high = (extreme.reduceat(rows, starts, axis=1) + np.float32(0) for extreme in (np.minimum, np.maximum))
        return low, high

    def nearest_codes(self, rows: Array, scale: Array, offset: Array) -> Array:
        """For each value the code that decodes nearest to it; zero where the scale is."""
        if self.form == "symmetric":  # rounded before half is added, as `kernels.encode_symmetric` does
            signed = np.rint(_quotient(rows, _per_column(scale, self.span(rows.shape[1]), rows.shape[1])))
            return (np.clip(signed, -self.half, self.half - 1) + self.half).astype(np.uint8)
        codes = np.empty(rows.shape, np.uint8)
        step, origin = (np.ascontiguousarray(part, np.float32) for part in (scale, offset))
        kernels.grid_codes(rows, step, origin, self.span(rows.shape[1]), self.form == "scale_bias", self.levels, codes)
        return codes

    def span_of(self, rows: Array) -> tuple[Array, Array]:
        """Scale and offset of each group, rounded to the stored type (to infinity, where they leave its range)."""
        low, high = (extreme.astype(np.float64) for extreme in self.extremes(rows))
        if self.form == "symmetric":
            # One bit has no positive code: its grid is −s and 0.
            scale = self._round(np.maximum(high, -low) / max(self.half - 1, 1))
            return scale, self._round(np.full(scale.shape, self.half))
        scale = self._round((high - low) / self.levels)
        if self.form == "scale_bias":
            return scale, self._round(low)
        with np.errstate(all="ignore"):
            zero = self._round(-low / scale.astype(np.float64))
        # A group without a usable step is one value, s · (0 + 1).
        constant = ~np.isfinite(zero.astype(np.float32))
        return np.where(constant, self._round((low + high) / 2), scale), np.where(constant, self._round(-1), zero)

    def in_range(self, scale: Array, offset: Array) -> Array:
        """Which groups' scale, offset and every step of decoding are finite in float32."""
        s, o = (np.abs(part.astype(np.float32)) for part in (scale, offset))
        with np.errstate(over="ignore", invalid="ignore"):
            reach = s * self.levels + o if self.form == "scale_bias" else s * (self.levels + o)
        finite: Array = np.isfinite(reach)
        return finite

    def representable(self, scale: Array, offset: Array) -> tuple[Array, Array]:
        """Both rounded to their stored type; UnsupportedError where they, or a step of decoding, leave their range."""
        stored = self._round(scale), self._round(offset)
        if not self.in_range(*stored).all():
            raise UnsupportedError(f"the weights are too large for {self.scale} scales", code="E_RANGE", hint="use f32 scales")
        return stored

    def _round(self, wide: Array | float) -> Array:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.asarray(wide).astype(FLOATS[self.scale].numpy)

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        group = self.span(spec.columns)
        if self.axis != -1 or self.packing != "little" or group % 32 or spec.columns % group:
            return None
        codes = parts["codes"].view(np.uint8)
        if self.form == "scale_bias" and self.bits > 1:
            return kernels.matrix(f"affine{self.bits}", codes=codes, scale=parts["scale"], bias=parts["bias"])
        if self.form == "symmetric" and self.bits == 8:
            return kernels.matrix("symmetric8", codes=codes, scale=parts["scale"])
        return None

    # The lines its codes lie on

    has_lines = True

    def alone(self, spec: TensorSpec) -> int:
        return self.span(spec.columns) if self.axis == -1 else 0

    @property
    def searched_by(self) -> str:
        return "clip"

    def lines(self, spec: TensorSpec, parts: Parts) -> Lines:
        wide = [np.ascontiguousarray(part.T) for part in self._wide(parts)]
        least = -self.half if self.form == "symmetric" else 0
        levels = np.arange(least, least + self.levels + 1, dtype=np.float32)[None]
        own = levels, self.span(spec.columns), wide[0]
        if self.form == "scale_zero":
            return Zeros(*own, -wide[0] * wide[1], FLOATS[self.scale], True, zeros=FLOATS[self.scale])
        if self.form == "symmetric":
            return Lines(*own, np.zeros_like(wide[0]), FLOATS[self.scale], has_bias=False)
        return Lines(*own, wide[1], FLOATS[self.scale], has_bias=True)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        scale, offset = lines.scale.T, lines.bias.T
        if self.form == "scale_zero":
            offset = -_quotient(offset, scale)
        elif self.form == "symmetric":
            offset = np.full_like(scale, self.half)
        return self.store(spec, codes, *self.representable(scale, offset))

    # The grid behind the bytes

    @property
    def grid_spec(self) -> GridSpec | None:
        """None where rounding may keep the values from being exactly s · q + b. The bias of a symmetric grid, −half · s, may
        leave the range of a narrow type."""
        if self.axis != -1 or self.form == "scale_zero" or (self.form == "symmetric" and self.scale == "f32"):
            return None
        return GridSpec(self.bits, self.group, self.scale if self.form == "scale_bias" else "f32")

    def holds_grid(self, grid: GridSpec, columns: int) -> bool:
        same = self.bits == grid.bits and self.span(columns) == (grid.group or columns) and self.axis == -1
        return same and self.form == "scale_bias" and self.scale in (grid.scale, "f32")

    def grid(self, spec: TensorSpec, parts: Parts) -> Grid:
        self._require(self.axis == -1, "its groups do not run along rows")
        codes, scale, offset = self._load(spec, parts)
        with np.errstate(all="ignore"):
            bias = offset if self.form == "scale_bias" else -offset * scale
        grid = Grid(self.bits, self.span(codes.shape[1]), codes, scale, bias)
        if self.form != "scale_bias":
            self._require(_equal(_grid_values(grid), self.decode(spec, parts)), "its values are not exactly s · q + b")
        return grid

    def from_grid(self, spec: TensorSpec, grid: Grid) -> Parts:
        self._require(self.axis == -1, "its groups do not run along rows")
        span, columns = self.span(spec.columns), spec.columns
        first = np.arange(0, columns, span)
        last = np.minimum(first + span, columns) - 1
        self._require(np.array_equal(first // grid.group, last // grid.group), f"groups of {grid.group} do not match")
        codes, scale, offset = grid.codes, grid.scale[:, first // grid.group], grid.bias[:, first // grid.group]
        if self.form != "scale_bias":
            offset = -_quotient(offset, scale)
        if self.form == "symmetric":
            moved = codes + (self.half - _per_column(offset, span, columns))
            codes = np.where((moved >= 0) & (moved <= self.levels), moved, 0).astype(np.uint8)
            offset = np.full_like(scale, self.half)
        self._require(int(codes.max(initial=0)) <= self.levels, f"codes of {grid.bits} bits are too wide")
        self._require(
            all(_equal(self._round(wide).astype(np.float32), wide) for wide in (scale, offset)),
            f"a scale or offset is not exact in {self.scale}",
        )
        parts = self.store(spec, codes, scale, offset)
        if self.form != "scale_bias":
            self._require(_equal(_grid_values(grid), self.decode(spec, parts)), f"its values are not exact as {self.form}")
        return parts

    def _require(self, holds: bool, why: str) -> None:
        if not holds:
            raise UnsupportedError(f"cannot be repacked as {self.spec} without loss: {why}", code="E_GRID")


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    """A scalar is a row of one."""
    return spec.shape or (1,)


def _per_column(groups: Array, span: int, columns: int) -> Array:
    """(rows, groups) → (rows, columns) float32."""
    return np.repeat(groups.astype(np.float32), min(span, columns), axis=1)[:, :columns]


def _quotient(a: Array, b: Array) -> Array:
    """a / b, and zero where b is zero."""
    with np.errstate(all="ignore"):
        return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def _grid_values(grid: Grid) -> Array:
    values = np.empty(grid.codes.shape, np.float32)
    kernels.decode_scale_bias(grid.codes, 8, grid.scale, grid.bias, grid.group, values)
    return values


def _equal(a: Array, b: Array) -> bool:
    """Equal as numbers: a zero may change its sign, a NaN stays one."""
    return np.array_equal(a.reshape(-1), b.reshape(-1), equal_nan=True)
