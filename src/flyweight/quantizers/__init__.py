"""Quantizers: ways to fill a codec's parts. One is a function and a line in QUANTIZERS."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from flyweight.codecs import Codec
from flyweight.codecs.affine import Affine
from flyweight.codecs.hqq import Hqq
from flyweight.codecs.masked import Masked
from flyweight.codecs.palette import Palette
from flyweight.codecs.tabled import Tabled
from flyweight.quantizers.base import Quantizer
from flyweight.quantizers.clip import clip
from flyweight.quantizers.edge import edge
from flyweight.quantizers.hqq import hqq
from flyweight.quantizers.kmeans import kmeans
from flyweight.quantizers.nearest import nearest
from flyweight.quantizers.prune import prune
from flyweight.quantizers.through import through_mask, through_table

__all__ = ["QUANTIZERS", "Quantizer", "default_for", "prune"]

QUANTIZERS: Mapping[str, Quantizer] = MappingProxyType(
    {
        "nearest": through_mask(nearest),
        "edge": through_mask(through_table(edge)),
        "kmeans": through_mask(kmeans),
        "clip": through_mask(through_table(clip)),
        "hqq": through_mask(through_table(hqq)),
    }
)


def default_for(codec: Codec) -> str:
    """The quantizer with less error on real weights: docs/decisions/0004, 0031, 0091, and docs/formats/palette.md."""
    if isinstance(codec, Masked):
        return default_for(codec.inner_codec)
    if isinstance(codec, Tabled):
        return "edge"
    if isinstance(codec, Hqq):
        return "hqq"
    if isinstance(codec, Palette):
        return "kmeans"
    return "edge" if isinstance(codec, Affine) and codec.form == "scale_bias" and codec.bits <= 2 else "nearest"
