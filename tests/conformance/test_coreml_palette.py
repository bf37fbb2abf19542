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
from coremltools.converters.mil.mil.ops.defs.iOS18.compression import (  # noqa: E402
    constexpr_blockwise_shift_scale,
    constexpr_lut_to_dense,
)
from coremltools.models.neural_network import quantization_utils  # noqa: E402
from coremltools.optimize.coreml._quantization_passes import palettize_weights  # noqa: E402

logging.disable(logging.NOTSET)

SPEC = TensorSpec((40, 64), DType.F32)
FORMS = [
    *(Palette(bits) for bits in (1, 2, 3, 4, 6, 8)),
    *(Palette(4, group, axis) for group in (1, 4, 8) for axis in (0, 1)),
    *(Palette(4, 0, 0, vector, axis) for vector in (2, 4) for axis in (0, 1)),
    Palette(4, 8, 0, 2, 0),
    Palette(6, 0, 0, 2, 0),
    Palette(4, 0, 0, 5, 0),
    *(
        Palette(4, 8, 0, table=kind, scale="f16", offset=kind, scale_per=per)
        for kind in ("i8", "u8")
        for per in ("table", "tensor")
    ),
    *(Palette(4, 4, 1, table=table, scale="f16") for table in ("i8", "f16")),
]


@pytest.mark.parametrize("codec", FORMS, ids=lambda codec: str(codec.spec))
def test_the_operator_gives_our_values(codec: Palette) -> None:
    weights = np.random.default_rng(1).standard_normal(SPEC.shape).astype(np.float16)
    parts = QUANTIZERS["kmeans"](weights, codec, SPEC)
    shape = [n // codec.vector if axis == codec.vector_axis % 2 else n for axis, n in enumerate(SPEC.shape)]
    indices = packing.unpack("little", parts["indices"][None], codec.bits, int(np.prod(shape))).reshape(shape)
    tables = parts["tables"]
    if codec.scale:
        tables = constexpr_blockwise_shift_scale.decompress(tables, parts["scale"], parts.get("offset"))
    axis = None if codec.vector == 1 else codec.vector_axis
    theirs = constexpr_lut_to_dense.decompress(indices, tables, axis)
    assert np.array_equal(theirs.astype(np.float32), codec.decode(SPEC, parts))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
def test_its_exact_kmeans_has_no_smaller_error(bits: int) -> None:
    weights = np.random.default_rng(bits).standard_t(5, (128, 128)).astype(np.float16)
    spec, codec = TensorSpec(weights.shape, DType.F32), Palette(bits, table="f32")
    ours = codec.decode(spec, QUANTIZERS["kmeans"](weights, codec, spec)).reshape(-1)
    table, codes = quantization_utils._get_kmeans_lookup_table_and_weight(bits, weights, force_kmeans1d=True)
    flat = weights.astype(np.float64).reshape(-1)
    assert np.sum((ours - flat) ** 2) <= np.sum((table[codes] - flat) ** 2) * (1 + 1e-6)


@pytest.mark.parametrize(("vector", "bits"), [(2, 4), (2, 6), (2, 8), (4, 4), (4, 6), (4, 8), (5, 4), (5, 8)])
@pytest.mark.parametrize("tails", [5.0, np.inf], ids=["long tails", "normal"])
def test_its_kmeans_of_vectors_has_no_smaller_error(vector: int, bits: int, tails: float) -> None:
    """scikit-learn, as coremltools calls it, neither finds the best centres nor runs to the end."""
    pytest.importorskip("sklearn", reason="coremltools finds tables of vectors by scikit-learn")
    rng = np.random.default_rng(vector)
    weights = (rng.standard_t(tails, (640, 256)) if np.isfinite(tails) else rng.standard_normal((640, 256))).astype(np.float16)
    spec, codec = TensorSpec(weights.shape, DType.F32), Palette(bits, 0, 0, vector, 0)
    ours = codec.decode(spec, QUANTIZERS["kmeans"](weights, codec, spec))
    found = palettize_weights.grouped_channelwise_compress(weights, "KMEANS", bits, 0, 0, cluster_dim=vector)
    theirs = palettize_weights.decompress(found).astype(np.float64)
    assert np.sum((ours - weights.astype(np.float64)) ** 2) <= np.sum((theirs - weights.astype(np.float64)) ** 2)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_its_uniform_table_has_no_smaller_error(bits: int) -> None:
    """Its step is rounded to f16 before it is multiplied, and its codes are found in f16: both tables end at the same
    values, but entries between differ by roundings, and codes are not always of the nearest entry."""
    weights = np.random.default_rng(bits).standard_normal((128, 128)).astype(np.float16)
    spec, codec = TensorSpec(weights.shape, DType.F32), Palette(bits)
    parts = QUANTIZERS["nearest"](weights, codec, spec)
    found = palettize_weights.grouped_channelwise_compress(weights, "UNIFORM", bits, 0, 0)
    table = parts["tables"].reshape(-1).astype(np.float64)
    assert np.abs(found.lut.reshape(-1) - table).max() <= 2.0**-10 * np.abs(table).max() * (1 + 2**bits * 2.0**-2)
    wide = weights.astype(np.float64)
    theirs = palettize_weights.decompress(found).astype(np.float64)
    assert np.sum((codec.decode(spec, parts) - wide) ** 2) <= np.sum((theirs - wide) ** 2) * (1 + 1e-3)


def test_its_unique_values_are_kept() -> None:
    """`unique` is `kmeans` of no more values than entries; its spare entries are 0, ours repeat the last."""
    weights = np.random.default_rng(7).choice(np.float16([-1.5, -0.25, 0.125, 2.0, 3.0]), (32, 64))
    spec, codec = TensorSpec(weights.shape, DType.F32), Palette(3)
    parts = QUANTIZERS["kmeans"](weights, codec, spec)
    found = palettize_weights.grouped_channelwise_compress(weights, "UNIQUE", None, 0, 0)
    indices = packing.unpack("little", parts["indices"][None], 3, weights.size).reshape(weights.shape)
    assert np.array_equal(found.indices, indices)
    assert np.array_equal(found.lut.reshape(-1)[:5], parts["tables"].reshape(-1)[:5])
    assert found.lut.reshape(-1)[5:].tolist() == [0, 0, 0]
    assert parts["tables"].reshape(-1)[5:].tolist() == [3, 3, 3]
