"""`scaled`: the values of an inner codec, times a scale for each block of the tensor.

    w = rnd(scale · v)        v the inner value in the type of the scale, to which rnd rounds

    scale          a number for each block (`blocking`)
    inner.*        the parts of the inner codec for the whole tensor

It is Core ML's `constexpr_blockwise_shift_scale` of data that is compressed itself: a palette with a scale per channel.
docs/formats/blockwise.md has the layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flyweight.codecs.blocking import Blocking, block_lengths
from flyweight.codecs.casts import astype, cast_into
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.outer import EncodeInner, OuterCodec
from flyweight.codecs.value_checks import require_f32, require_finite, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, Layout, TensorSpec

_PALETTE = CodecSpec("palette")
_SCALES = {"f16": DType.F16, "f32": DType.F32}
_F32 = DType.F32.numpy
_SLAB = 1 << 16
"""Values scaled at a time: they stay in the second-level cache."""


@dataclass(frozen=True)
class Scaled(OuterCodec):
    inner: CodecSpec = _PALETTE
    block: str = "1"
    scale: str = "f16"

    name = "scaled"
    exact: ClassVar[bool] = False
    copies_if_whole = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, scale=_SCALES)
        block_lengths(self.block)

    @property
    def needs_fit(self) -> bool:
        return self.inner_codec.needs_fit

    @property
    def value_dtype(self) -> DType | None:
        return DType.F16 if self.scale == "f16" else None

    @property
    def masked_together(self) -> int:
        return self.inner_codec.masked_together

    # Layout

    def inner_spec(self, spec: TensorSpec) -> TensorSpec:
        """A codec that keeps any type has values of that of the scale."""
        return TensorSpec(spec.shape, _SCALES[self.scale]) if self.inner_codec.exact else spec

    def decoded_dtype(self, dtype: DType) -> DType:
        return DType.F32

    def _blocking(self, spec: TensorSpec) -> Blocking:
        require_f32(self, spec)
        return Blocking.of(spec, block_lengths(self.block))

    def layout(self, spec: TensorSpec) -> Layout:
        return {"scale": TensorSpec(self._blocking(spec).stored_shape, _SCALES[self.scale]), **self.inner_layout(spec)}

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        inner = self.inner_parts(parts)
        if self.inner_codec.exact:
            out[...] = self.inner_codec.decode(self.inner_spec(spec), inner)
        else:
            self.inner_codec.decode(spec, inner, out)
        blocking, scale, flat = self._blocking(spec), astype(parts["scale"], _F32), out.reshape(1, -1)
        for start in range(0, spec.size, _SLAB):
            self._multiply(blocking, scale, start, flat[:, start : start + _SLAB])

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        if not spec.size:
            return
        blocking, scale, at = self._blocking(spec), astype(parts["scale"], _F32), 0
        for run in self.inner_codec.decoded_runs(self.inner_spec(spec), self.inner_parts(parts)):
            values = np.array(run, np.float32)
            self._multiply(blocking, scale, at, values[None])
            yield values
            at += values.size

    def _multiply(self, blocking: Blocking, scale: Array, start: int, values: Array) -> None:
        """The elements from `start`, (1, elements), in place."""
        if self.scale == "f16" and not (self.inner_codec.exact or self.inner_codec.value_dtype is DType.F16):
            cast_into(self._round(values), values)
        with np.errstate(all="ignore"):
            blocking.apply(np.multiply, values, scale, start)
        if self.scale == "f16":
            cast_into(self._round(values), values)

    def _round(self, wide: Array) -> Array:
        return astype(wide, _SCALES[self.scale].numpy)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        complaint = Codec.check_values(self, spec, {"scale": parts["scale"]})
        complaint = complaint or self.inner_codec.check_values(self.inner_spec(spec), self.inner_parts(parts))
        try:
            finite = complaint or all(np.isfinite(run).all() for run in self.decoded_runs(spec, parts))
        except MalformedError as error:
            return error.message
        return complaint or (None if finite else "a value times its scale is infinite")

    # Encoding

    def fit(self, spec: TensorSpec, array: Array) -> Codec:
        values = astype(self._unscaled(spec, array)[0], self.inner_spec(spec).dtype.numpy)
        return self.around(self.inner_codec.fit(self.inner_spec(spec), values))

    def encode_around(self, spec: TensorSpec, array: Array, encode_inner: EncodeInner) -> Parts:
        """The scale is the greatest magnitude of a block, so that the inner codec has values from −1 to 1."""
        values, scale = self._unscaled(spec, array)
        return {"scale": scale, **self.under_prefix(encode_inner(self.inner_spec(spec), values))}

    def _unscaled(self, spec: TensorSpec, array: Array) -> tuple[Array, Array]:
        """The values over their scales, and these as they will be stored."""
        blocking, stored = self._blocking(spec), self.layout(spec)["scale"]
        values = np.array(array, np.float32).reshape(1, -1)
        if not spec.size:
            return values.reshape(spec.shape), np.zeros(stored.shape, stored.dtype.numpy)
        scale = self._round(blocking.peaks(values))
        require_finite(np.isfinite(values).all())
        if not np.isfinite(scale).all():
            raise UnsupportedError(f"the weights are too large for {self.scale} scales", code="E_RANGE", hint="use f32 scales")
        divisor = np.where(scale > 0, scale, np.ones((), scale.dtype)).astype(np.float32)
        for start in range(0, spec.size, _SLAB):
            blocking.apply(np.divide, values[:, start : start + _SLAB], divisor, start)
        return values.reshape(spec.shape), scale.reshape(stored.shape)
