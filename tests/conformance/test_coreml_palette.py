"""Palettes against coremltools: its look-up operator gives our values from our parts, and its k-means has no smaller error."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from flyweight.codecs import packing
from flyweight.codecs.palette import Palette
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS

logging.disable(logging.CRITICAL)  # coremltools reports the parts of it that only a Mac has
from coremltools.converters.mil.mil.ops.defs.iOS18.compression import constexpr_lut_to_dense  # noqa: E402
from coremltools.models.neural_network import quantization_utils  # noqa: E402

logging.disable(logging.NOTSET)

SPEC = TensorSpec((32, 64), DType.F32)
FORMS = [
    *(Palette(bits) for bits in (1, 2, 3, 4, 6, 8)),
    *(Palette(4, group, axis) for group in (1, 4, 8) for axis in (0, 1)),
    *(Palette(4, 0, 0, vector, axis) for vector in (2, 4) for axis in (0, 1)),
    Palette(4, 8, 0, 2, 0),
    Palette(6, 0, 0, 2, 0),
]


@pytest.mark.parametrize("codec", FORMS, ids=lambda codec: str(codec.spec))
def test_the_operator_gives_our_values(codec: Palette) -> None:
    weights = np.random.default_rng(1).standard_normal(SPEC.shape).astype(np.float16)
    parts = QUANTIZERS["kmeans"](weights, codec, SPEC)
    shape = [n // codec.vector if axis == codec.vector_axis % 2 else n for axis, n in enumerate(SPEC.shape)]
    indices = packing.unpack("little", parts["indices"][None], codec.bits, int(np.prod(shape))).reshape(shape)
    axis = None if codec.vector == 1 else codec.vector_axis
    theirs = constexpr_lut_to_dense.decompress(indices, parts["tables"], axis)
    assert np.array_equal(theirs.astype(np.float32), codec.decode(SPEC, parts))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
def test_its_exact_kmeans_has_no_smaller_error(bits: int) -> None:
    weights = np.random.default_rng(bits).standard_t(5, (128, 128)).astype(np.float16)
    spec, codec = TensorSpec(weights.shape, DType.F32), Palette(bits, table="f32")
    ours = codec.decode(spec, QUANTIZERS["kmeans"](weights, codec, spec)).reshape(-1)
    table, codes = quantization_utils._get_kmeans_lookup_table_and_weight(bits, weights, force_kmeans1d=True)
    flat = weights.astype(np.float64).reshape(-1)
    assert np.sum((ours - flat) ** 2) <= np.sum((table[codes] - flat) ** 2) * (1 + 1e-6)
