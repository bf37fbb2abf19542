"""`nearest`: the codec's own encoder.

For the K types, iq4_xs and iq4_nl of ggml that is a search, and importance weighs its columns; for MXFP4 importance chooses
between the nearest exponents. For every other codec the grid follows from the extremes of the values and each value takes its
nearest code: whatever the weights, no other code of that grid has less error, so they change nothing.
"""

from __future__ import annotations

from flyweight.codecs import Array, Codec, Parts
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers.quantizer import Quantizer


def _fill(array: Array, codec: Codec, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    return codec.encode_weighted(spec, array, inputs.importance if inputs else None)


nearest = Quantizer("nearest", lambda _: True, _fill)
