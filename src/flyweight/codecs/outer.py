"""Codecs around another codec: composition, as one parameter.

`inner` is the spec of the other codec, kept with every parameter, so that a file says what it means whatever the defaults
become. The inner codec's parts are stored under "inner." and their own names. It may be such a codec itself: its inner
parts are then under "inner.inner.", and so on, as deep as a spec may be.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from flyweight.codecs.base import Array, Codec, Parts
from flyweight.errors import FlyweightError
from flyweight.limits import MAX_CODEC_DEPTH
from flyweight.tensor import RAW, CodecSpec, Layout, TensorSpec

__all__ = ["OuterCodec"]

_PREFIX = "inner."


@dataclass(frozen=True)
class OuterCodec(Codec):
    inner: CodecSpec = RAW
    """A name alone, which recipes and files may have, stands for the codec with its defaults."""

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

    @abstractmethod
    def inner_spec(self, spec: TensorSpec) -> TensorSpec:
        """What the inner codec stores for a tensor."""

    def inner_layout(self, spec: TensorSpec) -> Layout:
        return {_PREFIX + name: part for name, part in self.inner_codec.layout(self.inner_spec(spec)).items()}

    def inner_parts(self, parts: Parts) -> Parts:
        return {name.removeprefix(_PREFIX): part for name, part in parts.items() if name.startswith(_PREFIX)}

    def inner_encode(self, spec: TensorSpec, array: Array) -> Parts:
        return self.under_prefix(self.inner_codec.encode(self.inner_spec(spec), array))

    def under_prefix(self, parts: Parts) -> Parts:
        """The inner codec's parts under the names they are stored by."""
        return {_PREFIX + name: part for name, part in parts.items()}
