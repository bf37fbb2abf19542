"""`f8q8`: blocks of 32 signed bytes with a scale of one byte, as mistral.rs stores them.

    w = fl(q · fl(E4M3(d) / 416))

A block has 33 bytes: d, then the 32 codes. Rows of whole blocks are cut like any others; any other tensor is one run of blocks
over its elements in order, the last block filled up with zeros. docs/formats/f8q8.md has the layout and the error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import require_f32, require_finite
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_BLOCK, _BYTES = 32, 33
_RUN = 1 << 16  # blocks decoded at a time
TOP = kernels.F8Q8_TOP
SCALES = kernels.f8q8_scales()
"""The scale that each d stands for; NaN for 127 and 255."""
_LARGEST = 126
_REACH = np.float32(127) * SCALES[0, _LARGEST]


class F8q8(Codec):
    name = "f8q8"
    copies_if_whole = 3

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        if spec.columns % _BLOCK:
            return {"blocks": TensorSpec((-(-spec.size // _BLOCK) * _BYTES,), DType.U8)}
        return {"blocks": TensorSpec((*spec.shape[:-1], spec.columns // _BLOCK * _BYTES), DType.U8)}

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        blocks, flat, whole = self._blocks(parts), out.reshape(-1), spec.size // _BLOCK
        kernels.f8q8_decode(blocks[:whole], SCALES, flat[: whole * _BLOCK].reshape(-1, _BLOCK))
        if whole < len(blocks):
            last = np.empty((1, _BLOCK), np.float32)
            kernels.f8q8_decode(blocks[whole:], SCALES, last)
            flat[whole * _BLOCK :] = last[0, : spec.size % _BLOCK]

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        blocks = self._blocks(parts)
        for start in range(0, len(blocks), _RUN):
            some = blocks[start : start + _RUN]
            size = min(len(some) * _BLOCK, spec.size - start * _BLOCK)
            yield self.decode(TensorSpec((size,), DType.F32), {"blocks": some.reshape(-1)})

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """The least scale that reaches every value of a block; a code is the nearest to what it will decode to."""
        parts = self.allocate(spec)
        for values, peaks, blocks in self.runs(spec, array, parts):
            d = np.searchsorted(SCALES[0, : _LARGEST + 1], peaks / np.float32(127)).astype(np.uint8)
            with np.errstate(divide="ignore"):
                inverse = np.where(d > 0, np.float32(1) / SCALES[0, d], np.float32(0))
            kernels.f8q8_encode(values, d, inverse, blocks)
        return parts

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix:
        return kernels.matrix("f8q8", blocks=parts["blocks"])

    def allocate(self, spec: TensorSpec) -> dict[str, Array]:
        return {"blocks": np.zeros(self.layout(spec)["blocks"].shape, np.uint8)}

    def runs(self, spec: TensorSpec, array: Array, parts: Parts) -> Iterator[tuple[Array, Array, Array]]:
        """Some blocks after the other: values, (n, 32), greatest magnitudes, (n, 1), all within reach, and where they go."""
        flat, blocks = np.asarray(array).reshape(-1), self._blocks(parts)
        for start in range(0, len(blocks), _RUN):
            given = astype(flat[start * _BLOCK : (start + _RUN) * _BLOCK], DType.F32.numpy)
            if given.size % _BLOCK:
                given = np.pad(given, (0, -given.size % _BLOCK))
            values = given.reshape(-1, _BLOCK)
            peaks = np.empty((len(values), 1), np.float32)
            kernels.magnitudes(values, _BLOCK, peaks)
            require_finite(np.isfinite(peaks).all())
            if (peaks > _REACH).any():
                raise UnsupportedError(f"f8q8 has no magnitudes above {_REACH:.2f}", code="E_BLOCK_RANGE")
            yield values, peaks, blocks[start : start + _RUN]

    def _blocks(self, parts: Parts) -> Array:
        """(n, 33)"""
        return np.ascontiguousarray(parts["blocks"]).reshape(-1, _BYTES)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        nan = self._blocks(parts)[:, 0] & 0x7F == 0x7F
        return f"block {int(nan.argmax())} has a scale that is NaN" if nan.any() else None
