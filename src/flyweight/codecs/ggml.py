"""The block types of ggml: a row is a run of fixed-size blocks, each with its own scale.

One part, `blocks`: u8, the tensor's shape with its last axis replaced by the bytes of a row. The
byte layouts and formulas are in docs/formats/ggml-blocks.md, their definition in `kernels.blocks`.

    w = d · (code − half)            q4_0 q5_0 q8_0     uniform grids around zero
    w = d · code + m                 q4_1 q5_1          uniform grids from a minimum
    w = d · q                        q8_1 q8_k          activations, rarely stored
    w = d · sc · (code − half)       q3_k q6_k          scales of scales, 16 elements each
    w = d · sc · code − dmin · mn    q2_k q4_k q5_k
    w = d · level[code]              iq4_nl iq4_xs mxfp4
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from flyweight import kernels
from flyweight.codecs import microscaled
from flyweight.codecs.casts import as_float, astype
from flyweight.codecs.codec import Array, Codec, Filler, Grid, GridSpec, Parts, column_weights
from flyweight.codecs.lines import Lines, Steps
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.ggml_types import GGML_TYPES, ggml_types_with
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import Layout, TensorSpec
from flyweight.kernels.blocks.fields import FORMS, Fields
from flyweight.kernels.blocks.layout import to_planes

if TYPE_CHECKING:
    from flyweight.codecs.affine import Affine


class GgmlBlocks(Codec):
    """A type of ggml. `scales` lists the fields that must be finite: (byte offset, type)."""

    rounds = True
    block_size: ClassVar[int]
    block_bytes: ClassVar[int]
    scales: ClassVar[tuple[tuple[int, str], ...]] = ((0, "<f2"),)
    steps: ClassVar[tuple[int, ...]] = ()
    """How many of each f16 scale a value is at most. Every value is a sum of whole numbers of them."""

    def __init_subclass__(cls) -> None:
        """A named type takes its block and its abilities from the table of types."""
        if "name" in vars(cls):
            own = GGML_TYPES[cls.name]
            cls.block_size, cls.block_bytes = own.elements, own.nbytes
            cls.encodes = "nearest" in own.kernels or "search" in own.kernels
            cls.has_lines = cls.has_lines or cls.name in FORMS

    def layout(self, spec: TensorSpec) -> Layout:
        if not spec.shape or spec.columns % self.block_size:
            raise UnsupportedError(
                f"{self.name} needs rows that are a multiple of {self.block_size} long, not {spec}", code="E_BLOCK_ROWS"
            )
        if spec.dtype is not DType.F32:
            raise UnsupportedError(f"{self.name} decodes to f32, not {spec.dtype}", code="E_BLOCK_DTYPE")
        return {"blocks": TensorSpec((*spec.shape[:-1], spec.columns // self.block_size * self.block_bytes), DType.U8)}

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        getattr(kernels, f"decode_{self.name}")(self._blocks(parts), out.reshape(-1, self.block_size))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """Nearest rounding. UnsupportedError when a value is not finite or a scale leaves the range of its field."""
        return self._encode(spec, array)

    def _encode(self, spec: TensorSpec, array: Array, *weights: Array) -> Parts:
        if not self.encodes:
            return super().encode(spec, array)
        parts = self._allocate(spec)
        # Nearest encoders widen on their way. What is beyond f32 is found by the check below.
        values = astype(np.asarray(array), DType.F32.numpy) if weights else as_float(array)
        getattr(kernels, f"encode_{self.name}")(values.reshape(-1, self.block_size), *weights, self._blocks(parts))
        self._require_storable(spec, parts)
        return parts

    def _require_storable(self, spec: TensorSpec, parts: Parts) -> None:
        if (complaint := self.check_values(spec, parts)) is not None:
            raise UnsupportedError(f"the values cannot be stored as {self.name}: {complaint}", code="E_BLOCK_RANGE")

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        return kernels.matrix(self.name, blocks=parts["blocks"]) if self.name in kernels.FORMS else None

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        blocks = self._blocks(parts)
        for at, kind in self.scales:
            field = blocks[:, at : at + np.dtype(kind).itemsize].view(kind)
            if not (finite := np.isfinite(field)).all():
                return f"block {int(finite.argmin())} has a scale that is NaN or infinite"
        return None

    def alone(self, spec: TensorSpec) -> int:
        return self.block_size if self.has_lines else 0

    def lines(self, spec: TensorSpec, parts: Parts) -> Lines:
        if self.name not in FORMS:
            return super().lines(spec, parts)
        form = FORMS[self.name]
        fields, has_bias = form.read(self._blocks(parts)), form.m is not None

        def turned(array: Array | None) -> Array:
            """(blocks of all rows, n) → (n of a row, rows)"""
            return np.zeros_like(scale) if array is None else np.ascontiguousarray(array.reshape(spec.rows, -1).T)

        scale = turned(fields.scale)
        group = self.block_size // fields.scale.shape[1]
        own = form.levels[None], group, scale, turned(fields.bias), DType.F16, has_bias
        if fields.steps is None:
            return Lines(*own)
        m, minimums = (turned(fields.m), turned(fields.minimums)) if has_bias else (None, None)
        return Steps(*own, form.greatest, turned(fields.d), m, turned(fields.steps), minimums)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        if self.name not in FORMS:
            return super().from_lines(spec, lines, codes)

        def of_blocks(array: Array | None) -> Array | None:
            return None if array is None else np.ascontiguousarray(array.T).reshape(len(blocks), -1)

        parts = self._allocate(spec)
        blocks, by_block = self._blocks(parts), codes.reshape(-1, self.block_size)
        d, m, steps, minimums = lines.scale, lines.bias if lines.has_bias else None, None, None
        if isinstance(lines, Steps):
            d, m, steps, minimums = lines.d, lines.m, lines.steps, lines.minimums
        kept = of_blocks(d)
        assert kept is not None
        FORMS[self.name].write(blocks, Fields(kept, by_block, of_blocks(m), of_blocks(steps), of_blocks(minimums)))
        self._require_storable(spec, parts)
        return parts

    def f16_bound(self, spec: TensorSpec, parts: Parts) -> float | None:
        if not self.steps or not spec.size:
            return 0.0 if self.steps else None
        blocks = self._blocks(parts)
        fields = (blocks[:, at : at + 2].view("<f2") for at, _ in self.scales)
        return float(sum(count * float(np.abs(field).max()) for count, field in zip(self.steps, fields, strict=True)))

    def _blocks(self, parts: Parts) -> Array:
        """Every block as a row of bytes. (n, block_bytes)"""
        return np.ascontiguousarray(parts["blocks"]).reshape(-1, self.block_bytes)

    def _allocate(self, spec: TensorSpec) -> dict[str, Array]:
        return {"blocks": np.zeros(self.layout(spec)["blocks"].shape, np.uint8)}


# Uniform grids --------------------------------------------------------------------------------


class _UniformGrid(GgmlBlocks):
    """A type whose codes and scales are also a `Grid`."""

    bits: ClassVar[int]
    affine_form: ClassVar[str]
    """The codec `affine` of this form has the same grids."""
    searched_by = "clip"

    @property
    def affine(self) -> Affine:
        from flyweight.codecs.affine import Affine  # which running such a type does without

        return Affine(self.bits, self.block_size, self.affine_form, "f16")

    def filled_by(self, filler: Filler, spec: TensorSpec, array: Array, inputs: InputStatistics | None = None) -> Parts:
        if filler.takes(self) or not filler.takes(self.affine):
            return super().filled_by(filler, spec, array, inputs)
        self.layout(spec)
        return self.from_grid(spec, self.affine.grid(spec, filler.fill(array, self.affine, spec, inputs)))

    @property
    def grid_spec(self) -> GridSpec:
        return GridSpec(self.bits, self.block_size, "f16")

    def grid(self, spec: TensorSpec, parts: Parts) -> Grid:
        blocks = self._blocks(parts)
        scale, bias = self._map(blocks)
        shape = (spec.rows, spec.columns // self.block_size)
        codes = self._codes(blocks).reshape(spec.rows, spec.columns)
        return Grid(self.bits, self.block_size, codes, scale.reshape(shape), bias.reshape(shape))

    def from_grid(self, spec: TensorSpec, grid: Grid) -> Parts:
        columns = np.arange(0, spec.columns, self.block_size)
        group = columns // grid.group
        if grid.bits > self.bits or not np.array_equal(group, (columns + self.block_size - 1) // grid.group):
            raise UnsupportedError(
                f"{self.name} has {self.bits} bits in groups of {self.block_size}, "
                f"not {grid.bits} bits in groups of {grid.group}",
                code="E_GRID",
            )
        parts = self._allocate(spec)
        scale, bias = grid.scale[:, group].reshape(-1, 1), grid.bias[:, group].reshape(-1, 1)
        self._fill(self._blocks(parts), grid.codes.reshape(-1, self.block_size), scale, bias)
        return parts

    @abstractmethod
    def _map(self, blocks: Array) -> tuple[Array, Array]:
        """Scale and bias of every block. 2 × (n, 1) f32"""

    @abstractmethod
    def _fill(self, blocks: Array, codes: Array, scale: Array, bias: Array) -> None:
        """Write blocks of the same values, or UnsupportedError."""

    def _codes(self, blocks: Array) -> Array:
        """(n, 32) u8"""
        if self.bits == 8:
            return blocks[:, 2:34] ^ np.uint8(0x80)
        nibbles = blocks[:, -16:]
        codes = np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=1)
        if self.bits == 5:
            codes |= np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little") << 4
        return codes

    def _put_codes(self, blocks: Array, codes: Array) -> None:
        if self.bits == 8:
            blocks[:, 2:34] = codes ^ np.uint8(0x80)
            return
        blocks[:, -16:] = (codes[:, :16] & 0x0F) | (codes[:, 16:] << 4)
        if self.bits == 5:
            blocks[:, -20:-16] = np.packbits(codes >> 4, axis=1, bitorder="little")

    def _half(self, values: Array, what: str) -> Array:
        """The bytes of values that f16 holds exactly."""
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        if not (np.isfinite(halves) & (halves.astype(np.float32) == values)).all():
            raise UnsupportedError(f"a {what} is not exact in f16, the type that {self.name} stores", code="E_GRID")
        return halves.view(np.uint8)


class _Centred(_UniformGrid):
    """w = d · (code − half), half = 2**(bits − 1): any grid whose bias is a whole number of steps fits, shifted."""

    affine_form = "symmetric"

    def _map(self, blocks: Array) -> tuple[Array, Array]:
        scale = blocks[:, 0:2].view("<f2").astype(np.float32)
        return scale, scale * np.float32(-(1 << (self.bits - 1)))

    def _fill(self, blocks: Array, codes: Array, scale: Array, bias: Array) -> None:
        half, top = 1 << (self.bits - 1), (1 << self.bits) - 1
        blocks[:, 0:2] = self._half(scale, "scale")
        with np.errstate(all="ignore"):
            steps = np.where(scale == 0, np.float32(-half), np.round(bias / scale))
            # Beyond ±256 steps no code is in range; held there so that the sum below stays a small integer.
            steps = np.clip(np.nan_to_num(steps, nan=-half), -256, 256)
            off_grid = steps * scale != bias
        shifted = codes.astype(np.int16) + (steps.astype(np.int16) + np.int16(half))
        if off_grid.any() or (shifted < 0).any() or (shifted > top).any():
            raise UnsupportedError(f"the offset is not the one of {self.name}; q4_1 and q5_1 store any offset", code="E_GRID")
        self._put_codes(blocks, shifted.astype(np.uint8))


class _FromMinimum(_UniformGrid):
    """w = d · code + m."""

    affine_form = "scale_bias"
    scales = ((0, "<f2"), (2, "<f2"))

    def holds_grid(self, grid: GridSpec, columns: int) -> bool:
        return grid == self.grid_spec

    def _map(self, blocks: Array) -> tuple[Array, Array]:
        fields = blocks[:, 0:4].view("<f2").astype(np.float32)
        return fields[:, 0:1], fields[:, 1:2]

    def _fill(self, blocks: Array, codes: Array, scale: Array, bias: Array) -> None:
        blocks[:, 0:2] = self._half(scale, "scale")
        blocks[:, 2:4] = self._half(bias, "bias")
        self._put_codes(blocks, codes)


# The types ------------------------------------------------------------------------------------


class _Microscaled(GgmlBlocks):
    """The scale is an exponent in one byte; 255 means NaN."""

    scales = ()
    has_lines = True

    def encode_weighted(self, spec: TensorSpec, array: Array, importance: Array | None) -> Parts:
        """As `encode`; importance chooses among the exponents around that one."""
        parts = self.encode(spec, array)
        if importance is not None and spec.size:
            values = astype(np.asarray(array), DType.F32.numpy).reshape(-1, self.block_size)
            self._put(self._blocks(parts), *microscaled.searched(values, self._blocks(parts)[:, :1], importance, spec))
        return parts

    def lines(self, spec: TensorSpec, parts: Parts) -> Lines:
        return microscaled.lines_of(self._blocks(parts)[:, :1], spec.rows)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        parts = self._allocate(spec)
        self._put(self._blocks(parts), *microscaled.stored(lines.scale, codes))
        return parts

    @staticmethod
    def _put(blocks: Array, exponents: Array, codes: Array) -> None:
        blocks[:, :1], blocks[:, 1:] = exponents, to_planes(codes, 16, 4)

    @property
    def value_dtype(self) -> DType | None:
        """Two bits after the point and a power of two of eight bits."""
        return DType.BF16

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        if (marked := self._blocks(parts)[:, 0] == 0xFF).any():
            return f"block {int(marked.argmax())} has the E8M0 scale 255, which means NaN"
        return None


class Searched(GgmlBlocks):
    """Its encoder searches for the scales of least error, and can weigh columns."""

    def encode(self, spec: TensorSpec, array: Array, importance: Array | None = None) -> Parts:
        weights = np.ones((1, self.block_size), np.float32)
        if importance is not None:
            weights = column_weights(importance, spec).reshape(-1, self.block_size)
        return self._encode(spec, array, weights)

    def encode_weighted(self, spec: TensorSpec, array: Array, importance: Array | None) -> Parts:
        return self.encode(spec, array, importance)


def _type(name: str, base: type[GgmlBlocks] = GgmlBlocks, **attributes: object) -> type[GgmlBlocks]:
    return cast(type[GgmlBlocks], type(name, (base,), {"name": name, "__module__": __name__, **attributes}))


Q4_0 = _type("q4_0", _Centred, bits=4, steps=(8,))
Q4_1 = _type("q4_1", _FromMinimum, bits=4, steps=(15, 1))
Q5_0 = _type("q5_0", _Centred, bits=5, steps=(16,))
Q5_1 = _type("q5_1", _FromMinimum, bits=5, steps=(31, 1))
Q8_0 = _type("q8_0", _Centred, bits=8, steps=(128,))
Q8_1 = _type("q8_1", scales=((0, "<f2"), (2, "<f2")), steps=(128, 0))
Q2_K = _type("q2_k", Searched, scales=((80, "<f2"), (82, "<f2")), steps=(15 * 3, 15))
Q3_K = _type("q3_k", Searched, scales=((108, "<f2"),), steps=(32 * 4,))
Q4_K = _type("q4_k", Searched, scales=((0, "<f2"), (2, "<f2")), steps=(63 * 15, 63))
Q5_K = _type("q5_k", Searched, scales=((0, "<f2"), (2, "<f2")), steps=(63 * 31, 63))
Q6_K = _type("q6_k", Searched, scales=((208, "<f2"),), steps=(128 * 32,))
Q8_K = _type("q8_k", Searched, scales=((0, "<f4"),))
MXFP4 = _type("mxfp4", _Microscaled)
IQ4_NL = _type("iq4_nl", Searched, steps=(127,))
IQ4_XS = _type("iq4_xs", Searched, steps=(32 * 127,))

CODECS: tuple[type[GgmlBlocks], ...] = tuple(globals()[name.upper()] for name in ggml_types_with("decode"))
