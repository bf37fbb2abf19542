"""Codecs around another codec, which is their parameter `inner`.

`inner` is the spec of the other codec, kept with every parameter, so that a file says what it means whatever the defaults
become. The inner codec's parts are stored under "inner." and their own names. It may be such a codec itself: its inner
parts are then under "inner.inner.", and so on, as deep as a spec may be.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from flyweight.codecs.codec import Array, Codec, Filler, Parts, column_weights
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.limits import MAX_CODEC_DEPTH
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, TensorSpec

_PREFIX = "inner."
EncodeInner = Callable[[TensorSpec, Array], Parts]


@dataclass(frozen=True)
class OuterCodec(Codec):
    inner: CodecSpec = RAW
    """A name alone, which recipes and files may have, stands for the codec with its defaults."""

    decodes_any_bytes = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner", self.inner_codec.spec)
        if self.inner.depth >= MAX_CODEC_DEPTH:
            raise ValueError(f"codecs are nested more than {MAX_CODEC_DEPTH} deep")

    @cached_property
    def inner_codec(self) -> Codec:
        from flyweight.codecs import codec_for  # the table of codecs has those that hold one

        given: object = self.inner
        spec = CodecSpec(given) if isinstance(given, str) else given
        if not isinstance(spec, CodecSpec):
            raise ValueError(f"inner must be a codec, not {given!r}")
        try:
            return codec_for(spec)
        except FlyweightError as error:
            raise ValueError(f"inner: {error.message}") from None

    def around(self, codec: Codec) -> Self:
        """The same codec around another."""
        return replace(self, inner=codec.spec)

    @property
    def exact(self) -> bool:
        return self.inner_codec.exact

    @property
    def quantizer(self) -> str:
        return self.inner_codec.quantizer

    @property
    def needs_gate(self) -> bool:
        return self.inner_codec.needs_gate

    @abstractmethod
    def inner_spec(self, spec: TensorSpec) -> TensorSpec:
        """What the inner codec stores for a tensor."""

    def inner_layout(self, spec: TensorSpec) -> Layout:
        return {_PREFIX + name: part for name, part in self.inner_codec.layout(self.inner_spec(spec)).items()}

    def inner_parts(self, parts: Parts) -> Parts:
        return {name.removeprefix(_PREFIX): part for name, part in parts.items() if name.startswith(_PREFIX)}

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        return self.encode_around(spec, array, self.inner_codec.encode)

    def filled_by(self, filler: Filler, spec: TensorSpec, array: Array, inputs: InputStatistics | None = None) -> Parts:
        if inputs is not None and self.inner_spec(spec) != spec:
            column_weights(inputs.importance, spec)  # refuses what is none
            inputs = None  # the inner codec does not see these columns
        return self.encode_around(spec, array, lambda own, values: self.inner_codec.filled_by(filler, own, values, inputs))

    @abstractmethod
    def encode_around(self, spec: TensorSpec, array: Array, encode_inner: EncodeInner) -> Parts:
        """As `encode`, the inner codec's parts made by `encode_inner(its spec, its values)`."""

    def decoded_dtype(self, dtype: DType) -> DType:
        return self.inner_codec.decoded_dtype(dtype)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        try:
            self.decode(spec, parts)
        except MalformedError as error:
            return error.message
        own = {name: part for name, part in parts.items() if not name.startswith(_PREFIX)}
        inner = self.inner_parts(parts)
        return super().check_values(spec, own) or self.inner_codec.check_values(self.inner_spec(spec), inner)

    def under_prefix(self, parts: Parts) -> Parts:
        """The inner codec's parts under the names they are stored by."""
        return {_PREFIX + name: part for name, part in parts.items()}
