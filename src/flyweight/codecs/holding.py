"""Codecs that hold a codec: composition, as one text parameter.

`inner` names the held codec: a name alone, or {"name": …, "params": {…}} as JSON. It is kept in full, so that a file says what
it means whatever the defaults become. The held codec's parts are stored under "inner." and their own names. A held codec
holds none itself.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from flyweight import strict_json
from flyweight.codecs.base import Array, Codec, Parts
from flyweight.errors import FlyweightError
from flyweight.tensor import CodecSpec, Layout, TensorSpec

__all__ = ["Holding"]

_PREFIX = "inner."
_MAX_TEXT = 4096


@dataclass(frozen=True)
class Holding(Codec):
    inner: str = "raw"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner", _text(self.held))

    @cached_property
    def held(self) -> Codec:
        return _codec(self.inner)

    def holding(self, codec: Codec) -> Self:
        """The same codec around another."""
        return replace(self, inner=_text(codec))

    @abstractmethod
    def held_spec(self, spec: TensorSpec) -> TensorSpec:
        """What the held codec stores for a tensor."""

    def held_layout(self, spec: TensorSpec) -> Layout:
        return {_PREFIX + name: part for name, part in self.held.layout(self.held_spec(spec)).items()}

    def held_parts(self, parts: Parts) -> Parts:
        return {name.removeprefix(_PREFIX): part for name, part in parts.items() if name.startswith(_PREFIX)}

    def held_encode(self, spec: TensorSpec, array: Array) -> Parts:
        return self.under_prefix(self.held.encode(self.held_spec(spec), array))

    def under_prefix(self, parts: Parts) -> Parts:
        """The held codec's parts under the names they are stored by."""
        return {_PREFIX + name: part for name, part in parts.items()}


def _text(codec: Codec) -> str:
    return strict_json.dumps(codec.spec.as_json()).decode()


def _codec(text: object) -> Codec:
    from flyweight.codecs import codec_for  # the table of codecs holds those that hold

    if type(text) is not str or len(text) > _MAX_TEXT:
        raise ValueError(f"inner must be a codec as text of at most {_MAX_TEXT} characters")
    try:
        match strict_json.loads(text.encode(), file="inner") if text.startswith("{") else {"name": text, "params": {}}:
            case {"name": str(name), "params": dict(params)}:
                codec = codec_for(CodecSpec(name, params))
            case _:
                raise ValueError("inner must have a name and params")
    except FlyweightError as error:
        raise ValueError(f"inner: {error.message}") from None
    if isinstance(codec, Holding):
        raise ValueError(f"inner: {codec.name} holds a codec itself")
    return codec
