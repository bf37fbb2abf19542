"""`sign`: one bit per weight and one scale per row.

    w = s · (2b − 1)        s the mean magnitude of the row, b = 1 where w ≥ 0

Parts: `signs`, u8, the bits of each row in a named packing; `scale`, one per row. docs/formats/sign.md has the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.casts import as_float
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import FLOATS, require_f32, require_finite, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec


@dataclass(frozen=True)
class Sign(Codec):
    scale: str = "f32"
    packing: str = "little"

    name = "sign"

    def __post_init__(self) -> None:
        require_one_of(self, scale=FLOATS, packing=packing.PACKINGS)

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        return {
            "signs": TensorSpec((*spec.shape[:-1], packing.packed_width(self.packing, 1, spec.columns)), DType.U8),
            "scale": TensorSpec((*spec.shape[:-1], 1), FLOATS[self.scale]),
        }

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        width = packing.packed_width(self.packing, 1, spec.columns)
        bits = packing.unpack(self.packing, parts["signs"].reshape(spec.rows, width), 1, spec.columns)
        scale = np.ascontiguousarray(parts["scale"], np.float32).reshape(spec.rows, 1)
        tables = np.concatenate([-scale, scale], axis=1)
        kernels.palette_decode(
            np.ascontiguousarray(bits).reshape(1, -1), tables, 1, spec.columns, spec.size, 0, out.reshape(1, -1)
        )

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The scale that minimises the squared error of a row is its mean magnitude."""
        layout = self.layout(spec)
        bits = np.empty((spec.rows, packing.packed_width("little", 1, spec.columns)), np.uint8)
        sums = np.empty((spec.rows, 1))
        kernels.sign_encode(as_float(array).reshape(spec.rows, spec.columns), bits, sums)
        require_finite(np.isfinite(sums).all())
        with np.errstate(over="ignore"):
            scale = (sums / max(spec.columns, 1)).astype(layout["scale"].dtype.numpy)
        if not np.isfinite(scale.astype(np.float32)).all():
            raise UnsupportedError(f"the weights are too large for {self.scale} scales", code="E_RANGE", hint="use f32 scales")
        if self.packing != "little":
            bits = packing.pack(self.packing, packing.unpack("little", bits, 1, spec.columns), 1)
        return {"signs": bits.reshape(layout["signs"].shape), "scale": scale.reshape(layout["scale"].shape)}
