"""Textures of one Gaussian matrix, on one thread: bits, SNR and speed beside astcenc. MB/s of f32 weights in or out.

The figures of docs/formats/astc.md. A matrix of 512 × 512 is encoded at every footprint; decoding takes 16 of it, beside
astcenc's own decoder, whose smallest output of more than eight bits is FP16 of four channels. Palettes stand below.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import astc_encoder
import numpy as np

from flyweight.bench.harness import Case, main
from flyweight.codecs import astc
from flyweight.codecs.codec import Codec, Parts
from flyweight.codecs.palette import Palette
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS

SIDE, TIMES = 512, 4
SPEC = TensorSpec((SIDE, SIDE), DType.F32)
TIMED = ((4, 4), (6, 6), (8, 8), (12, 12))
FAST = 10.0
Array = np.ndarray[Any, Any]


def notes(codec: Codec, parts: Parts, weights: Array) -> dict[str, float | str]:
    wide = weights.astype(np.float64)
    noise = ((codec.decode(SPEC, parts) - wide) ** 2).mean()
    bits = sum(part.nbytes for part in parts.values()) * 8 / weights.size
    return {"bits per weight": f"{bits:.2f}", "SNR": f"{10 * np.log10((wide**2).mean() / noise):.1f} dB"}


def fast(codec: astc.Astc, weights: Array) -> Parts:
    """As the codec does, with the encoder's preset "fast"."""
    medium, astc._EFFORT = astc._EFFORT, FAST
    try:
        return codec.encode(SPEC, weights)
    finally:
        astc._EFFORT = medium


class Peer:
    """astcenc's decoder of a texture."""

    def __init__(self, codec: astc.Astc, rows: int, columns: int) -> None:
        config = astc_encoder.ASTCConfig(astc_encoder.ASTCProfile.LDR, codec.width, codec.height)
        self.context, self.shape = astc_encoder.ASTCContext(config), (columns, rows)

    def decode(self, blocks: bytes) -> None:
        image = astc_encoder.ASTCImage(astc_encoder.ASTCType.F16, *self.shape)
        self.context.decompress(blocks, image, astc_encoder.ASTCSwizzle())


def decoding(codec: astc.Astc, parts: Parts, found: dict[str, float | str]) -> Case:
    blocks = np.tile(parts["blocks"], (TIMES, TIMES))
    rows, columns = len(blocks) * codec.height, blocks.shape[1] // 16 * codec.width
    spec, out, peer = TensorSpec((rows, columns), DType.F32), np.zeros((rows, columns), np.float32), Peer(codec, rows, columns)
    many, raw = {"blocks": blocks, "pair": parts["pair"]}, blocks.tobytes()
    return Case(
        f"decode, {codec.width}×{codec.height}",
        out.nbytes,
        {"flyweight": lambda: codec.decode(spec, many, out), "astcenc": lambda: peer.decode(raw)},
        target="1× astcenc",
        notes=found,
    )


def cases() -> Iterator[Case]:
    weights = np.random.default_rng(0).standard_normal(SPEC.shape).astype(np.float32)
    for footprint in astc.FOOTPRINTS:
        codec = astc.Astc(*footprint)
        parts = codec.encode(SPEC, weights)
        yield decoding(codec, parts, notes(codec, parts, weights))
    for footprint in TIMED:
        codec = astc.Astc(*footprint)
        yield Case(
            f"encode, {codec.width}×{codec.height}, medium",
            weights.nbytes,
            {"astcenc, medium": lambda c=codec: c.encode(SPEC, weights), "astcenc, fast": lambda c=codec: fast(c, weights)},
            limit="read",
            notes={f"{key}, fast": value for key, value in notes(codec, fast(codec, weights), weights).items()},
        )
    for bits in (1, 2, 3, 4, 6, 8):
        codec = Palette(bits)
        parts = QUANTIZERS["kmeans"](weights, codec, SPEC)
        out = np.zeros(SPEC.shape, np.float32)
        yield Case(
            f"decode, palette of {bits} bits",
            out.nbytes,
            {"flyweight": lambda c=codec, p=parts, o=out: c.decode(SPEC, p, o)},
            notes=notes(codec, parts, weights),
        )


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=3)
