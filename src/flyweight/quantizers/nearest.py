"""`nearest`: the codec's own encoder, which for the K types and iq4_xs of ggml is a search that can weigh columns."""

from __future__ import annotations

from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.ggml import Searched
from flyweight.quantizers.base import require_unweighted
from flyweight.tensor import TensorSpec

__all__ = ["nearest"]


def nearest(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
    if isinstance(codec, Searched):
        return codec.encode(spec, array, importance)
    require_unweighted(importance)
    return codec.encode(spec, array)
