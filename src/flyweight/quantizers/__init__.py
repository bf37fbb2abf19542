"""Quantizers: ways to fill a codec's parts. One is a file and a line in QUANTIZERS; a codec names the one that suits it."""

from __future__ import annotations

from flyweight.foundation.lazy_table import Table
from flyweight.quantizers.prune import prune
from flyweight.quantizers.quantizer import Quantizer

__all__ = ["QUANTIZERS", "Quantizer", "prune"]

QUANTIZERS: Table[Quantizer] = Table(
    __name__,
    {
        "nearest": "own_encoder:nearest",
        "anchored": "anchored:anchored",
        "kmeans": "kmeans:kmeans",
        "clip": "clip:clip",
        "hqq": "half_quadratic:hqq",
        "gptq": "gptq:gptq",
        "mistralrs": "mistralrs:mistralrs",
        "coremltools": "coremltools:coremltools",
        "coremltools_symmetric": "coremltools:symmetric",
    },
)
