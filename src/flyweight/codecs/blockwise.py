"""`blockwise`: integers with a scale, and if need be an offset, for each block of a tensor, as Core ML stores them.

    w = rnd(scale · (q − offset))        rnd rounds to the type of the scale

Codes are one bit stream over the whole tensor, the first in the low bits. A block has one length along every axis
(`blocking`): a tensor, an output channel, 32 neighbours of a row. Values are float32. It is Core ML's
`constexpr_affine_dequantize` and `constexpr_blockwise_shift_scale`; docs/formats/blockwise.md has layout and error bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.affine import Affine
from flyweight.codecs.blocking import Blocking, block_lengths
from flyweight.codecs.casts import as_float, astype
from flyweight.codecs.codec import Array, Codec, Filler, Parts, StoredCodes, column_weights
from flyweight.codecs.lines import Lines, Zeros
from flyweight.codecs.value_checks import require_f32, require_finite, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import Layout, TensorSpec, code_stream

_INTEGERS = {"i4": DType.I4, "u4": DType.U4, "i8": DType.I8, "u8": DType.U8}
_FLOATS = {"f16": DType.F16, "f32": DType.F32}
_EXPONENTS = {"f16": (-14, 15), "f32": (-126, 127)}
"""Of normal numbers."""
_F32 = DType.F32.numpy
_SHRINK = tuple(round(1 - 0.04 * i, 2) for i in range(1, 11))
"""Of grids whose zeros are whole, around which their ends are drawn in."""
_SLAB = 1 << 16
"""Values decoded at a time: they stay in the second-level cache. A multiple of 8, so that a slab starts on a byte."""


@dataclass(frozen=True)
class Blockwise(Codec):
    data: str = "i8"
    block: str = "1"
    scale: str = "f16"
    offset: str = ""

    name = "blockwise"
    copies_if_whole = 4

    def __post_init__(self) -> None:
        require_one_of(self, data=_INTEGERS | _FLOATS, scale=_FLOATS, offset=("", "data", *_FLOATS))
        block_lengths(self.block)
        if self.offset == "data" and self.data in _FLOATS:
            raise ValueError(f"the offset of {self.data} data must be f16 or f32")

    @property
    def bits(self) -> int:
        return self._data.bits

    @property
    def value_dtype(self) -> DType | None:
        return DType.F16 if self.scale == "f16" else None

    @property
    def masked_together(self) -> int:
        """An offset that is a float moves zeros."""
        return 0 if self.offset in _FLOATS else 1

    @cached_property
    def _data(self) -> DType:
        return (_INTEGERS | _FLOATS)[self.data]

    @property
    def is_symmetric(self) -> bool:
        """Whether codes are signed and have no offset."""
        return self._data.kind == "i" and not self.offset

    @property
    def _half(self) -> int:
        """What an unsigned code is more than the code it stands for."""
        return 1 << self.bits - 1 if self._data.kind == "i" else 0

    @property
    def _levels(self) -> int:
        return (1 << self.bits) - 1

    # Layout

    def blocking(self, spec: TensorSpec) -> Blocking:
        require_f32(self, spec)
        return Blocking.of(spec, block_lengths(self.block))

    def layout(self, spec: TensorSpec) -> Layout:
        blocks = self.blocking(spec).stored_shape
        codes = TensorSpec(spec.shape, self._data) if self.data in _FLOATS else code_stream(spec.shape, self.bits)
        layout = {"codes": codes, "scale": TensorSpec(blocks, _FLOATS[self.scale])}
        if self.offset == "data" and self.bits < 8:
            return layout | {"offset": code_stream(blocks, self.bits)}
        if self.offset:
            return layout | {"offset": TensorSpec(blocks, _FLOATS.get(self.offset, self._data))}
        return layout

    def stored_codes(self, spec: TensorSpec) -> StoredCodes:
        return StoredCodes("codes", self.bits, spec.shape)

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        stored, flat = self._load(spec, parts), out.reshape(1, -1)
        step = spec.size if stored.blocking.in_order else _SLAB  # scales are repeated for one slab at a time
        for start in range(0, spec.size, step):
            self._decode_span(stored, start, flat[:, start : start + step])

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        if not spec.size:
            return
        stored = self._load(spec, parts)
        for start in range(0, spec.size, _SLAB):
            values = np.empty((1, min(_SLAB, spec.size - start)), np.float32)
            self._decode_span(stored, start, values)
            yield values[0]

    def _load(self, spec: TensorSpec, parts: Parts) -> _Stored:
        codes = np.require(parts["codes"], requirements=["C", "A"]).reshape(1, -1)
        return _Stored(self.blocking(spec), codes, astype(parts["scale"], _F32), astype(self._offset(parts), _F32))

    def _offset(self, parts: Parts) -> Array:
        """A number for each block: zeros, where none are stored."""
        if not self.offset:
            return np.zeros(parts["scale"].shape, np.int8)
        if self.offset != "data" or self.bits == 8:
            return parts["offset"]
        packed = np.require(parts["offset"], np.uint8, ["C", "A"]).reshape(1, -1)
        return self._signed(packing.unpack("little", packed, self.bits, parts["scale"].size))

    def _signed(self, codes: Array) -> Array:
        """Codes of a byte each as the integers they stand for."""
        return codes if not self._half else ((codes ^ np.uint8(self._half)) - np.uint8(self._half)).view(np.int8)

    def _decode_span(self, stored: _Stored, start: int, out: Array) -> None:
        """Elements from `start`, a multiple of 8, (1, elements)."""
        if self.data in _FLOATS or (self.scale, self.offset) == ("f16", "f16"):
            self._decode_floats(stored, start, out)
            return
        run, stop, bits = stored.blocking.run, start + out.size, self.bits
        codes = stored.codes[:, start * bits // 8 : -(-stop * bits // 8)]
        if run * bits % 8:  # blocks that start within a byte
            codes, bits = self._signed(packing.unpack("little", codes, bits, out.size)).view(np.uint8), 8
        name = "decode_signed_zero" if self._half else "decode_scale_zero"
        decode = getattr(kernels, f"{name}_f16" if self.scale == "f16" else name)
        at = start
        while at < stop:  # to the end of the block that is under way, then all others
            end = min(at - at % run + run, stop) if at % run else stop
            first, last = at // run, -(-end // run)
            scale, offset = (stored.blocking.of_runs(part, first, last) for part in (stored.scale, stored.offset))
            own = codes[:, (at - start) * bits // 8 : -(-(end - start) * bits // 8)]
            decode(own, bits, scale, offset, run, out[:, at - start : end - start])
            at = end

    def _decode_floats(self, stored: _Stored, start: int, out: Array) -> None:
        """Data or offsets of a float type: every operation rounds to the widest type that takes part."""
        stop = start + out.size
        scale, offset = (stored.blocking.of_elements(part, start, stop) for part in (stored.scale, stored.offset))
        with np.errstate(all="ignore"):
            if self.data in _FLOATS:
                out[...] = self._round(stored.codes[:, start:stop])
            else:
                first = start * self.bits // 8
                out[...] = self._signed(packing.unpack("little", stored.codes[:, first:], self.bits, out.size))
            if self.offset:
                out -= offset
            if self.offset == "f16":
                out[...] = self._round(out)
            out *= scale
            out[...] = self._round(out)

    def _round(self, wide: Array) -> Array:
        return astype(wide, _FLOATS[self.scale].numpy)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        complaint = super().check_values(spec, parts)
        if complaint or not spec.size:
            return complaint
        for part, count in (("codes", spec.size), ("offset", parts["scale"].size)):
            unused = -count * self.bits % 8 if part in parts and parts[part].dtype == np.uint8 else 0
            if unused and int(parts[part].reshape(-1)[-1]) >> (8 - unused):
                return f"the bits after the last number of part '{part}' are not zero"
        if self._in_range(parts["scale"], self._offset(parts)).all():
            return None
        finite = all(np.isfinite(run).all() for run in self.decoded_runs(spec, parts))
        return None if finite else "a code times its scale is infinite"

    def _in_range(self, scale: Array, offset: Array) -> Array:
        """Which blocks decode to finite values whatever their codes are."""
        if self.data in _FLOATS:
            return np.zeros(scale.shape, np.bool_)
        s, o = (part.reshape(-1).astype(np.float64) for part in (scale, offset))
        with np.errstate(invalid="ignore"):
            reach = np.abs(s) * np.maximum(np.abs(-self._half - o), np.abs(self._levels - self._half - o))
        finite: Array = np.isfinite(self._round(reach))
        return finite

    # Encoding

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The grid from the least to the greatest value of each block; without an offset, of ± the greatest magnitude.

        Scale and offset are rounded to their stored type first; a code is then the nearest point of the grid that will be
        decoded.
        """
        blocking = self.blocking(spec)
        if not spec.size:
            return {name: np.zeros(part.shape, part.dtype.storage) for name, part in self.layout(spec).items()}
        values = blocking.to_block_order(as_float(array).reshape(blocking.shape))
        if self.data in _FLOATS:
            return self._encode_floats(spec, blocking, astype(values, _F32))
        if self.is_symmetric:
            return self._encode_symmetric(spec, blocking, values)
        values = astype(values, _F32)
        return self.store_nearest(spec, values, *self._grid(*block_extremes(values, blocking.block_size)))

    def store_nearest(self, spec: TensorSpec, values: Array, scale: Array, offset: Array) -> Parts:
        """The parts for values in block order, (1, elements), by the nearest codes of grids as they are stored, (1, blocks)."""
        self._require_range(self._in_range(scale, offset))
        blocking, codes = self.blocking(spec), np.empty(values.shape, np.uint8)
        zero = astype(offset, _F32) + np.float32(self._half)
        kernels.grid_codes(values, astype(scale, _F32), zero, blocking.block_size, False, self._levels, codes)
        return self.store(spec, blocking.from_block_order(codes ^ np.uint8(self._half)), scale, offset)

    def store(self, spec: TensorSpec, codes: Array, scale: Array, offset: Array) -> Parts:
        """The parts for codes in the order of the tensor, (1, elements), a byte each, and for numbers of each block."""
        return self._parts(spec, packing.pack("little", codes & np.uint8(self._levels), self.bits), scale, offset)

    def _parts(self, spec: TensorSpec, codes: Array, scale: Array, offset: Array) -> Parts:
        layout = self.layout(spec)
        if self.offset == "data":
            offset = astype(offset, np.dtype(np.int16)).astype(np.uint8)
            if self.bits < 8:
                offset = packing.pack("little", offset.reshape(1, -1) & np.uint8(self._levels), self.bits)
            offset = offset.view(layout["offset"].dtype.storage)
        given = {"codes": codes, "scale": scale, "offset": offset}
        return {name: astype(given[name], part.dtype.storage).reshape(part.shape) for name, part in layout.items()}

    def _encode_symmetric(self, spec: TensorSpec, blocking: Blocking, values: Array) -> Parts:
        """By one kernel: fit, round, nearest codes, packed."""
        scale = np.empty((1, values.size // blocking.block_size), np.float32)
        packed = np.zeros((1, packing.packed_width("little", self.bits, values.size)), np.uint8)
        kernels.encode_symmetric(values, self.bits, blocking.block_size, self.scale, packed, scale)
        require_finite(not np.isnan(scale).any())
        self._require_range(self._in_range(scale, np.zeros(1)))
        if not blocking.in_order:
            codes = blocking.from_block_order(packing.unpack("little", packed, self.bits, values.size))
            packed = packing.pack("little", codes, self.bits)
        return self._parts(spec, packed, scale, np.zeros(1))

    def _grid(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Scale and offset of each block as they will be stored, (1, blocks)."""
        if not self.offset:
            if ((low < 0) & (high > 0)).any():
                raise UnsupportedError(
                    "unsigned codes without an offset hold blocks of one sign",
                    code="E_RANGE",
                    hint="use i4 or i8, or an offset",
                )
            return self._round(np.where(high > 0, high, low) / self._levels), np.zeros(low.shape, np.int8)
        if self.offset == "data":  # an offset is a code, so that zero is one too
            low, high = np.minimum(low, 0), np.maximum(high, 0)
            scale = self._round((high - low) / self._levels)
            step = scale.astype(np.float64)
            zero = np.divide(-low, step, out=np.zeros_like(low), where=(step > 0) & np.isfinite(step))
            return scale, np.clip(np.rint(zero), 0, self._levels) - self._half
        scale = self._round((high - low) / self._levels)
        kind = _FLOATS[self.offset].numpy
        with np.errstate(all="ignore"):
            offset = astype(-low / scale.astype(np.float64) - self._half, kind)
        # A block without a usable step is one value, s · (0 + 1).
        constant = ~np.isfinite(offset)
        alone = np.array(-1 - self._half, kind)
        return np.where(constant, self._round((low + high) / 2), scale), np.where(constant, alone, offset)

    def _encode_floats(self, spec: TensorSpec, blocking: Blocking, values: Array) -> Parts:
        """Scales are powers of two, which round nothing, and as large as the values of their block, where they can be."""
        low, high = block_extremes(values, blocking.block_size)
        peak = np.maximum(-low, high)
        scale = np.ldexp(1.0, np.clip(np.frexp(peak)[1], *_EXPONENTS[self.scale]))
        with np.errstate(over="ignore", under="ignore"):
            data = astype(values / np.repeat(scale, blocking.block_size, axis=1), self._data.numpy)
            reach = self._round(astype(peak / scale, self._data.numpy).astype(np.float64) * scale)
        self._require_range(np.isfinite(reach))
        return self._parts(spec, blocking.from_block_order(data), scale, np.zeros(scale.shape))

    # The same grids in the affine codec's bytes: its quantizers fill this codec too

    def _affine(self, spec: TensorSpec) -> tuple[Affine, TensorSpec] | None:
        """The codec with such codes and the rows in which blocks are its groups; None where there is none."""
        blocking = self.blocking(spec)
        if not (self._has_form and blocking.in_order and spec.size):
            return None
        rows = TensorSpec((spec.size // blocking.row, blocking.row), DType.F32)
        return Affine(self.bits, blocking.run, "scale_zero" if self.offset else "symmetric", self.scale), rows

    @property
    def _has_form(self) -> bool:
        """Whether codes are signed or have an offset."""
        return self.data in _INTEGERS and (self.is_symmetric or bool(self.offset))

    def filled_by(self, filler: Filler, spec: TensorSpec, array: Array, inputs: InputStatistics | None = None) -> Parts:
        """Values differ from those of the affine codec by their rounding to the type of the scale; an offset that is a code
        rounds its zeros, and the grid of `encode` is kept where it is the better one then."""
        same = self._affine(spec)
        if filler.takes(self) or same is None or not filler.takes(same[0]):
            return super().filled_by(filler, spec, array, inputs)
        affine, rows = same
        if inputs is not None:
            column_weights(inputs.importance, spec)  # refuses what is none
            inputs = inputs.repeated(rows.columns // spec.columns)
        parts = filler.fill(array, affine, rows, inputs)
        if self.offset:
            return self._with_offsets(spec, array, parts["scale"], parts["zero"], inputs)
        self._require_range(self._in_range(parts["scale"], np.zeros(1)))
        packed = parts["codes"]
        if rows.columns * self.bits % 8:  # rows share bytes
            packed = packing.pack("little", packing.unpack("little", packed, self.bits, rows.columns).reshape(1, -1), self.bits)
        return self._parts(spec, packed, parts["scale"], np.zeros(1))

    def _with_offsets(self, spec: TensorSpec, array: Array, scale: Array, zero: Array, inputs: InputStatistics | None) -> Parts:
        """The parts for grids with any zero, as they can be stored, or for those of `encode`, drawn in if zeros are whole: of
        each block whichever has least weighed error."""
        values, block = astype(np.asarray(array), _F32).reshape(1, -1), self.blocking(spec).block_size
        own = self._grid(*block_extremes(values, block))
        found = scale.reshape(1, -1), self._near_zero(zero.reshape(1, -1).astype(np.float32)) - np.float32(self._half)
        weights = np.ones(block, np.float32) if inputs is None else inputs.importance.astype(np.float32)
        tried = [found]
        if self.offset == "data":
            tried += [(self._round(own[0].astype(np.float64) * shrink), own[1]) for shrink in _SHRINK]
        best, least = own, self._losses(values, weights, block, *own)
        for grid in tried:
            loss = self._losses(values, weights, block, *grid)
            better = loss < least  # of what is infinite nothing is
            least = np.where(better, loss, least)
            best = (
                np.where(better, grid[0], best[0]).astype(own[0].dtype),
                np.where(better, grid[1], best[1]).astype(own[1].dtype),
            )
        return self.store_nearest(spec, values, *best)

    def _losses(self, values: Array, weights: Array, block: int, scale: Array, offset: Array) -> Array:
        """Σ weight · error² of each block by its nearest codes, (1, blocks); weights repeat, and are of whole blocks."""
        losses, step = np.empty(scale.shape), max(_SLAB // weights.size, 1) * weights.size
        for start in range(0, values.size, step):
            some, own = values[:, start : start + step], slice(start // block, (start + step) // block)
            codes, wide = np.empty(some.shape, np.uint8), np.empty(some.shape, np.float32)
            grid = astype(scale[:, own], _F32), astype(offset[:, own], _F32) + np.float32(self._half)
            kernels.grid_codes(some, *grid, block, False, self._levels, codes)
            kernels.decode_scale_zero(codes, 8, *grid, block, wide)
            with np.errstate(all="ignore"):
                lost = np.tile(weights, some.size // weights.size) * np.square(some - wide, dtype=np.float64)
            losses[0, own] = lost.reshape(-1, block).sum(axis=1)
        return losses

    def _near_zero(self, zero: Array) -> Array:
        """The nearest zeros of unsigned codes that can be stored, f32."""
        if self.offset == "data":
            return np.clip(np.rint(zero), 0, self._levels)
        half = np.float32(self._half)
        return astype(astype(zero - half, _FLOATS[self.offset].numpy), _F32) + half

    # The lines its codes lie on

    has_lines = True

    @property
    def searched_by(self) -> str:
        return "clip" if self._has_form and self._is_of_rows else "nearest"

    @property
    def _is_of_rows(self) -> bool:
        """Whether the blocks of a matrix are groups of its rows."""
        return block_lengths(self.block)[:1] == (1,)

    def alone(self, spec: TensorSpec) -> int:
        of_rows = len(spec.shape) == 2 and self._is_of_rows and spec.size
        return self.blocking(spec).run if self._has_form and of_rows else 0

    def lines(self, spec: TensorSpec, parts: Parts) -> Lines:
        def turned(part: Array) -> Array:
            return np.ascontiguousarray(astype(part, _F32).reshape(spec.rows, -1).T)

        levels = np.arange(-self._half, self._levels - self._half + 1, dtype=np.float32)[None]
        scale, dtype = turned(parts["scale"]), _FLOATS[self.scale]
        own = levels, self.blocking(spec).run, scale
        if not self.offset:
            return Lines(*own, np.zeros_like(scale), dtype, has_bias=False)
        zeros = _FLOATS[self.offset] if self.offset in _FLOATS else (-self._half, self._levels - self._half)
        return Zeros(*own, -scale * turned(self._offset(parts)), dtype, True, zeros=zeros)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        scale, offset = lines.scale, np.zeros_like(lines.scale)
        if isinstance(lines, Zeros):
            with np.errstate(all="ignore"):
                _, bias = lines.near(scale, lines.bias)
                offset = np.divide(-bias, scale, out=offset, where=scale != 0)
            if self.offset == "data":
                offset = np.rint(offset)
        scale, offset = (np.ascontiguousarray(part.T).reshape(1, -1) for part in (scale, offset))
        self._require_range(self._in_range(astype(scale, _FLOATS[self.scale].numpy), offset))
        return self.store(spec, (codes ^ np.uint8(self._half)).reshape(1, -1), scale, offset)

    def _require_range(self, finite: Array) -> None:
        if not finite.all():
            raise UnsupportedError(f"the weights are too large for {self.scale} scales", code="E_RANGE", hint="use f32 scales")


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a tensor is decoded from: codes as they are stored, (1, …), and a scale and an offset for each block, float32."""

    blocking: Blocking
    codes: Array
    scale: Array
    offset: Array


def block_extremes(values: Array, block: int) -> tuple[Array, Array]:
    """The least and the greatest value of each block, (1, blocks) float64, all finite."""
    starts = np.arange(0, values.shape[1], block)
    # Which zero is the least of +0 and −0 differs between processors; adding +0 makes every zero positive.
    low, high = (extreme.reduceat(values, starts, axis=1).astype(np.float64) + 0.0 for extreme in (np.minimum, np.maximum))
    require_finite(np.isfinite(low).all() and np.isfinite(high).all())
    return low, high
