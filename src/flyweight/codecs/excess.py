"""`excess`: codes minus a constant zero point, with one scale per group.

    w = s · (q − excess)

As `affine` with a zero that is the same everywhere; with `zeros` it is stored beside each scale all the same, and what is
stored counts. A group is `group` neighbours of a row (0: all
of them), or with `flat` of the whole tensor in memory order; the last one may be short. Values are float32, each operation
rounded once. docs/formats/excess.md has the layout and the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Grid, Parts
from flyweight.codecs.value_checks import require_f32, require_finite, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import CodecSpec, Layout, TensorSpec


@dataclass(frozen=True)
class Excess(Codec):
    """`top` is the greatest code the encoder uses."""

    bits: int = 4
    excess: int = 7
    top: int = 14
    group: int = 32
    flat: bool = False
    zeros: bool = False

    name = "excess"

    def __post_init__(self) -> None:
        require_integers(self, "bits", least=2, most=8)
        require_integers(self, "group", zero="all")
        require_one_of(self, flat=(True, False), zeros=(True, False))
        if type(self.excess) is not int or type(self.top) is not int or not 0 < self.excess < self.top < 1 << self.bits:
            raise ValueError(
                f"excess and top must satisfy 0 < excess < top < {1 << self.bits}, not {self.excess!r} and {self.top!r}"
            )

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec, 0)
        leading, columns = spec.shape[:-1], spec.columns
        if self.flat and not self._in_rows(columns):
            leading, columns = (), spec.size
        groups = TensorSpec((*leading, -(-columns // self._span(columns))), DType.F32)
        codes = TensorSpec((*leading, packing.packed_width("little", self.bits, columns)), DType.U8)
        return {"codes": codes, "scale": groups} | ({"zero": groups} if self.zeros else {})

    def _in_rows(self, columns: int) -> bool:
        """Whether rows begin at groups and at bytes, so that each stands alone though groups are counted over the tensor."""
        return self.group > 0 and columns % self.group == 0 and columns * self.bits % 8 == 0

    def _span(self, columns: int) -> int:
        return self.group or max(columns, 1)

    def _rows(self, spec: TensorSpec) -> tuple[int, int]:
        """The tensor as rows that groups do not leave."""
        return (1, spec.size) if self.flat and not self._in_rows(spec.columns) else (spec.rows, spec.columns)

    def _loaded(self, spec: TensorSpec, parts: Parts) -> tuple[Array, Array, Array]:
        """Codes as packed, scales and zeros, by rows that groups do not leave."""
        rows, _ = self._rows(spec)
        layout = self.layout(spec)
        codes, scale = (
            np.require(parts[part], requirements=["C", "A"]).reshape(rows, layout[part].shape[-1])
            for part in ("codes", "scale")
        )
        zero = np.full(scale.shape, self.excess, np.float32)
        if self.zeros:
            zero[...] = parts["zero"].reshape(scale.shape)
        return codes, scale, zero

    def product_codec(self, spec: TensorSpec) -> CodecSpec | None:
        """`grid` as four bits with a bias, which is −s · excess rounded to f32."""
        group = self._span(spec.columns)
        if self.bits > 4 or spec.columns % group or group % 32:
            return None
        return CodecSpec("affine", {"bits": 4, "group": group, "scale": "f32"})

    def grid(self, spec: TensorSpec, parts: Parts) -> Grid:
        """s · q + b with b = −s · excess, which is rounded once: for whoever asks, but not the same to the last bit."""
        rows, columns = self._rows(spec)
        if (rows, columns) != (spec.rows, spec.columns):
            raise UnsupportedError("groups span rows, so it cannot be repacked", code="E_NO_GRID")
        packed, scale, zero = self._loaded(spec, parts)
        with np.errstate(all="ignore"):
            bias = -(scale * zero)
        return Grid(self.bits, self._span(columns), packing.unpack("little", packed, self.bits, columns), scale, bias)

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        rows, columns = self._rows(spec)
        codes, scale, zero = self._loaded(spec, parts)
        kernels.decode_scale_zero(codes, self.bits, scale, zero, self._span(columns), out.reshape(rows, columns))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """Nearest codes under the scale whose grid reaches both ends of a group, or, where codes are not as many on both sides
        of zero, under that which misses the greatest magnitude by at most half a step, if the group loses less by it."""
        layout = self.layout(spec)
        rows, columns = self._rows(spec)
        values = astype(np.asarray(array), DType.F32.numpy).reshape(rows, columns)
        require_finite(np.isfinite(values).all())
        starts = np.arange(0, columns, self._span(columns))
        low, high = (extreme.reduceat(values, starts, axis=1).astype(np.float64) for extreme in (np.minimum, np.maximum))
        scale = np.maximum(np.maximum(high / (self.top - self.excess), -low / self.excess), 0).astype(np.float32)
        if not self._in_range(scale, self.excess):
            raise UnsupportedError("the weights are too large for f32 scales", code="E_RANGE")
        codes = self._nearest(values, scale)
        if self.top != 2 * self.excess:
            shorter = (np.maximum(high, -low) / (self.top / 2)).astype(np.float32)
            others = self._nearest(values, shorter)
            better = self._lost(values, others, shorter) < self._lost(values, codes, scale)
            scale, codes = np.where(better, shorter, scale), np.where(self._per_column(better, columns), others, codes)
        packed = packing.pack("little", codes, self.bits)
        parts = {"codes": packed, "scale": scale, "zero": np.full(scale.shape, self.excess, np.float32)}
        return {part: parts[part].reshape(want.shape) for part, want in layout.items()}

    def _per_column(self, groups: Array, columns: int) -> Array:
        return np.repeat(groups, min(self._span(columns), max(columns, 1)), axis=1)[:, :columns]

    def _nearest(self, values: Array, scale: Array) -> Array:
        steps = self._per_column(scale, values.shape[1])
        with np.errstate(over="ignore"):  # where a subnormal scale was rounded down
            quotient = np.divide(values, steps, out=np.zeros_like(values), where=steps > 0)
        signed = np.clip(np.rint(quotient), -self.excess, self.top - self.excess)
        return (signed + self.excess).astype(np.uint8)

    def _lost(self, values: Array, codes: Array, scale: Array) -> Array:
        """The squared error of each group. (rows, groups)"""
        columns = values.shape[1]
        starts = np.arange(0, columns, self._span(columns))
        with np.errstate(over="ignore"):  # what leaves the range loses everything
            decoded = self._per_column(scale, columns) * (codes.astype(np.float32) - self.excess)
            return np.add.reduceat(np.square(values - decoded, dtype=np.float64), starts, axis=1)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        complaint = super().check_values(spec, parts)
        if complaint is not None:
            return complaint
        if not self._in_range(parts["scale"], parts.get("zero", self.excess)):
            return "a scale times its codes is infinite"
        return None

    def _in_range(self, scale: Array, zero: Array | int) -> bool:
        """Whether every code decodes to a finite value."""
        with np.errstate(over="ignore"):
            steps = np.maximum(np.abs(zero), np.abs((1 << self.bits) - 1 - zero)).astype(np.float32)
            return bool(np.isfinite(np.abs(scale) * steps).all())
