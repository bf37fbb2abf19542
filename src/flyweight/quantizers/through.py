"""Quantizers of a grid fill the codecs that store that grid: `tabled` in other bytes than `affine`, `masked` beside a mask."""

from __future__ import annotations

from functools import wraps

import numpy as np

from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.base import column_weights
from flyweight.codecs.masked import Masked
from flyweight.codecs.tabled import Tabled
from flyweight.quantizers.base import Quantizer
from flyweight.tensor import TensorSpec

__all__ = ["through_mask", "through_table"]


def through_table(quantizer: Quantizer) -> Quantizer:
    """Tabled tensors by way of the affine codec with the same grids."""

    @wraps(quantizer)
    def fill(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
        if not isinstance(codec, Tabled):
            return quantizer(array, codec, spec, importance)
        codec.layout(spec)
        frame = codec.frame(spec)
        if importance is not None:
            column_weights(importance, spec)  # refuses what is none
            importance = np.tile(importance, frame.columns // max(spec.columns, 1))
        return codec.from_affine(spec, quantizer(array, codec.affine, frame, importance))

    return fill


def through_mask(quantizer: Quantizer) -> Quantizer:
    """Masked tensors by what they hold."""

    @wraps(quantizer)
    def fill(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
        if not isinstance(codec, Masked):
            return quantizer(array, codec, spec, importance)
        codec.layout(spec)
        return codec.masking(spec, array, quantizer(array, codec.inner_codec, codec.inner_spec(spec), importance))

    return fill
