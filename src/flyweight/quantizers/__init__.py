"""Quantizers: ways to fill a codec's parts. One is a file and a line in QUANTIZERS; a codec names the one that suits it."""

from __future__ import annotations

from flyweight.quantizers.base import Quantizer
from flyweight.quantizers.prune import prune
from flyweight.table import Table

__all__ = ["QUANTIZERS", "Quantizer", "prune"]

QUANTIZERS: Table[Quantizer] = Table(
    __name__,
    {
        "nearest": "nearest:nearest",
        "edge": "edge:edge",
        "kmeans": "kmeans:kmeans",
        "clip": "clip:clip",
        "hqq": "hqq:hqq",
    },
)
