"""How fast palettes are made and read, beside coremltools, in one process. MB/s of f16 weights in, or f32 out.

Scalars: both find the exact one-dimensional k-means of the same f16 tensor, coremltools by its bundled kmeans1d. Vectors:
coremltools calls scikit-learn, which has all cores, as we do. The run stops if ours has the larger error. coremltools has no
decoder but indexing the table with NumPy, so that is what decoding is beside.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from flyweight.bench.harness import Case, main
from flyweight.codecs.palette import Palette
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS

logging.disable(logging.CRITICAL)  # coremltools reports the parts of it that only a Mac has
from coremltools.optimize.coreml._quantization_passes import palettize_weights  # noqa: E402

SIZE, SMALL = 4096, 1024
"""Of the large tensor, and of one on which scikit-learn and tables by the hundred come to an end."""
Array = np.ndarray[Any, Any]


def relative_error(values: Array, weights: Array) -> float:
    wide = weights.astype(np.float64)
    return float(np.sqrt(np.mean((values - wide) ** 2) / np.mean(wide**2)))


def compared(name: str, weights: Array, codec: Palette, target: str = "") -> Case:
    """Our k-means beside that of coremltools, for the same form."""
    spec, kmeans = TensorSpec(weights.shape, DType.F32), QUANTIZERS["kmeans"]

    def theirs() -> Any:
        how = {"channel_axis": codec.axis, "channel_group_size": codec.group, "cluster_dim": codec.vector}
        return palettize_weights.grouped_channelwise_compress(weights, "KMEANS", codec.bits, **how)

    values = palettize_weights.decompress(theirs())
    errors = relative_error(codec.decode(spec, kmeans(weights, codec, spec)), weights), relative_error(values, weights)
    if errors[0] > errors[1] * (1 + 1e-6):
        sys.exit(f"{name}: our error {errors[0]} is above coremltools' {errors[1]}; a speed would mean nothing")
    return Case(
        f"kmeans, {name}",
        weights.nbytes,
        {"flyweight": lambda: kmeans(weights, codec, spec), "coremltools": theirs},
        limit="read",
        target=target,
        notes={"error": f"{errors[0]:.6f}", "coremltools' error": f"{errors[1]:.6f}"},
    )


def cases() -> Iterator[Case]:
    weights = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) * 0.02).astype(np.float16)
    small = np.ascontiguousarray(weights[:SMALL, :SMALL])
    spec, uniform = TensorSpec(weights.shape, DType.F32), QUANTIZERS["nearest"]
    for bits in (4, 6, 8):
        yield compared(f"{bits} bits", weights, Palette(bits), "20× coremltools" if bits == 4 else "")
    yield compared("4 bits, 16 rows", small, Palette(4, 16), "10× coremltools")
    yield compared("4 bits, 16 columns", small, Palette(4, 16, 1), "10× coremltools")
    for vector, bits in ((2, 4), (2, 6), (2, 8), (4, 6), (4, 8)):
        yield compared(f"{bits} bits, vectors of {vector}", small, Palette(bits, 0, 0, vector, 0), "10× coremltools")
    for bits in (2, 4, 6, 8):
        codec = Palette(bits)
        yield Case(
            f"uniform, {bits} bits", weights.nbytes, {"flyweight": lambda c=codec: uniform(weights, c, spec)}, limit="read"
        )
    for bits in (1, 2, 3, 4, 6, 8):
        codec = Palette(bits)
        parts, out = codec.encode(spec, weights), np.zeros(spec.shape, np.float32)
        entries = parts["tables"].reshape(-1).astype(np.float32)
        codes = np.ascontiguousarray(np.searchsorted(entries, codec.decode(spec, parts)).astype(np.uint8))
        yield Case(
            f"decode, {bits} bits",
            out.nbytes,
            {
                "flyweight": lambda c=codec, p=parts, o=out: c.decode(spec, p, o),
                "NumPy take, unpacked": lambda e=entries, i=codes, o=out: e.take(i, out=o, mode="clip"),
            },
        )
    for name, codec in (
        ("4 bits, 16 columns", Palette(4, 16, 1)),
        ("8 bits, pairs in a row", Palette(8, vector=2)),
        ("8 bits, pairs of rows", Palette(8, vector=2, vector_axis=0)),
        ("4 bits, fours of rows", Palette(4, vector=4, vector_axis=0)),
    ):
        parts, out = QUANTIZERS["kmeans"](weights, codec, spec), np.zeros(spec.shape, np.float32)
        yield Case(f"decode, {name}", out.nbytes, {"flyweight": lambda c=codec, p=parts, o=out: c.decode(spec, p, o)})


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=3)
