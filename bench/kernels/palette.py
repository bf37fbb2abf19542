"""How fast palettes are made and read, beside coremltools, in one process on one thread. MB/s of f16 weights in, or f32 out.

Both find the exact one-dimensional k-means of the same f16 tensor, coremltools by its bundled kmeans1d; the run stops if ours
has the larger error. coremltools has no decoder but indexing the table with NumPy, so that is what decoding is beside.
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
from coremltools.models.neural_network.quantization_utils import _get_kmeans_lookup_table_and_weight as peer  # noqa: E402

SIZE = 4096
Array = np.ndarray[Any, Any]


def relative_error(values: Array, weights: Array) -> float:
    wide = weights.astype(np.float64)
    return float(np.sqrt(np.mean((values - wide) ** 2) / np.mean(wide**2)))


def cases() -> Iterator[Case]:
    weights = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) * 0.02).astype(np.float16)
    spec = TensorSpec(weights.shape, DType.F32)
    kmeans, uniform = QUANTIZERS["kmeans"], QUANTIZERS["nearest"]
    for bits in (4, 8):
        codec = Palette(bits)
        parts = kmeans(weights, codec, spec)
        table, codes = peer(bits, weights)
        ours, theirs = codec.decode(spec, parts), table.astype(np.float16).astype(np.float32)[codes].reshape(weights.shape)
        errors = relative_error(ours, weights), relative_error(theirs, weights)
        if errors[0] > errors[1] * (1 + 1e-6):
            sys.exit(f"{bits} bits: our error {errors[0]} is above coremltools' {errors[1]}; a speed would mean nothing")
        yield Case(
            f"kmeans, {bits} bits",
            weights.nbytes,
            {
                "flyweight": lambda c=codec: kmeans(weights, c, spec),
                "coremltools": lambda b=bits: peer(b, weights),
            },
            limit="read",
            target="20× coremltools" if bits == 4 else "",
            notes={"error": f"{errors[0]:.6f}", "coremltools' error": f"{errors[1]:.6f}"},
        )
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


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=3)
