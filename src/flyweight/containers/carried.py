"""Which codecs a container can store, as data: `flyweight formats` shows it, and a law compares it with `Container.carries`.

    Carried("affine", {"bits": (4, 8), "packing": ("little",)})     a parameter that is not listed may have any value
    Carried("masked", {"inner": (Carried("raw"), …)})               a codec that holds one of these
    Carried("raw", dtypes=(DType.F32, DType.F16))                   of these element types only
    EVERY_CODEC                                                     every codec but raw, also those nobody here knows

Which shapes go with it only `carries` knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import RAW, CodecSpec, Param


class Carried(NamedTuple):
    codec: str
    params: Mapping[str, Sequence[Param | Carried]] = {}
    dtypes: Sequence[DType] = ()
    """The element types tensors may have; any if none is named."""

    def matches(self, codec: CodecSpec) -> bool:
        named = codec.name == self.codec or (self.codec == "*" and codec != RAW)
        return named and all(
            any(_matches(value, codec.params.get(key)) for value in allowed) for key, allowed in self.params.items()
        )

    def as_json(self) -> dict[str, Any]:
        params = {
            key: [value.as_json() if isinstance(value, Carried) else value for value in allowed]
            for key, allowed in self.params.items()
        }
        dtypes = {"dtypes": [dtype.label for dtype in self.dtypes]} if self.dtypes else {}
        return {"codec": self.codec, "params": params} | dtypes


EVERY_CODEC = Carried("*")
ROW_SIZES = (
    *(CodecSpec("woven", {"bits": bits}) for bits in range(2, 5)),
    *(CodecSpec("stepped", {"bits": bits, "group": 32}) for bits in range(2, 8)),
    *(CodecSpec("affine", {"bits": 8, "group": group, "scale": "f16"}) for group in (128, 64, 32)),
)
"""Codecs for rows of any length that a model of a certain size is made of, where every codec can be stored."""


def _matches(allowed: Param | Carried, value: Param | None) -> bool:
    if isinstance(allowed, Carried):
        return isinstance(value, CodecSpec) and allowed.matches(value)
    return type(value) is type(allowed) and value == allowed
