"""`nf4`: four-bit indices into the sixteen values of NormalFloat, with one scale per group.

    w = NF4[q] · s        s the greatest magnitude of the group

The table is that of QLoRA: quantiles of a normal distribution, scaled to −1 … 1, zero among them. A group is `group` neighbours
of a row (0: all of them); the last one may be short. docs/formats/nf4.md has the layout and the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyweight.codecs import packing
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import require_f32, require_finite, require_integers
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import Layout, TensorSpec

NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
_MIDPOINTS = ((NF4[:-1].astype(np.float64) + NF4[1:]) / 2).astype(np.float32)


@dataclass(frozen=True)
class Nf4(Codec):
    group: int = 32

    name = "nf4"

    def __post_init__(self) -> None:
        require_integers(self, "group", zero="the whole row")

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec, 0)
        return {
            "codes": TensorSpec((*spec.shape[:-1], packing.packed_width("little", 4, spec.columns)), DType.U8),
            "scale": TensorSpec((*spec.shape[:-1], self._groups(spec)), DType.F32),
        }

    def _span(self, spec: TensorSpec) -> int:
        return self.group or max(spec.columns, 1)

    def _groups(self, spec: TensorSpec) -> int:
        return -(-spec.columns // self._span(spec))

    def _steps(self, spec: TensorSpec, scale: Array) -> Array:
        """The scale of every weight. (rows, columns)"""
        wide = astype(scale, DType.F32.numpy).reshape(spec.rows, self._groups(spec))
        return np.repeat(wide, min(self._span(spec), max(spec.columns, 1)), axis=1)[:, : spec.columns]

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        packed = parts["codes"].reshape(spec.rows, packing.packed_width("little", 4, spec.columns))
        codes = packing.unpack("little", packed, 4, spec.columns)
        values = out.reshape(spec.rows, spec.columns)
        with np.errstate(all="ignore"):
            np.multiply(NF4[codes], self._steps(spec, parts["scale"]), out=values)

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        layout = self.layout(spec)
        values = astype(np.asarray(array), DType.F32.numpy).reshape(spec.rows, spec.columns)
        require_finite(np.isfinite(values).all())
        scale = np.maximum.reduceat(np.abs(values), np.arange(0, spec.columns, self._span(spec)), axis=1)
        steps = self._steps(spec, scale)
        quotient = np.divide(values, steps, out=np.zeros_like(values), where=steps > 0)
        packed = packing.pack("little", np.searchsorted(_MIDPOINTS, quotient).astype(np.uint8), 4)
        return {"codes": packed.reshape(layout["codes"].shape), "scale": scale.reshape(layout["scale"].shape)}
