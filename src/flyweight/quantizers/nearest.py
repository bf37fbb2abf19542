"""`nearest`: the codec's own encoder.

For the K types, iq4_xs and iq4_nl of ggml that is a search, and importance weighs its columns. For every other codec the grid
follows from the extremes of the values and each value takes its nearest code: whatever the weights, no other code of that
grid has less error, so they change nothing.
"""

from __future__ import annotations

from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.base import column_weights
from flyweight.codecs.ggml import Searched
from flyweight.tensor import TensorSpec

__all__ = ["nearest"]


def nearest(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
    if isinstance(codec, Searched):
        return codec.encode(spec, array, importance)
    if importance is not None:
        column_weights(importance, spec)  # refuses what is none
    return codec.encode(spec, array)
