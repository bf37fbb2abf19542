"""`nearest`: the codec's own encoder."""

from __future__ import annotations

from flyweight.codecs import Array, Codec, Parts
from flyweight.quantizers.base import require_unweighted
from flyweight.tensor import TensorSpec

__all__ = ["nearest"]


def nearest(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
    require_unweighted(importance)
    return codec.encode(spec, array)
