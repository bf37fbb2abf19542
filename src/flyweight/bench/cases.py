"""A decode and an encode benchmark for every codec, on weights like those of models."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flyweight.bench.harness import Case
from flyweight.codecs import CODECS, Codec
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.quantizers import QUANTIZERS

COLUMNS = 4096


def codec_cases(only: str = "", megabytes: int = 64) -> Iterator[Case]:
    """Rates count bytes of f32: what a decoder writes and an encoder reads."""
    rows = megabytes * 1_000_000 // (4 * COLUMNS)
    weights = (np.random.default_rng(0).standard_normal((rows, COLUMNS)) * 0.02).astype(np.float32)
    for kind in CODECS:
        if only in kind.name:
            yield from _cases(kind(), weights)


def _cases(codec: Codec, weights: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> Iterator[Case]:
    spec = TensorSpec(weights.shape, codec.decoded_dtype(DType.F32))
    if codec.encodes:
        codec = codec.fit(spec, weights)
        quantize = QUANTIZERS[codec.quantizer]
        parts = quantize(weights, codec, spec)
    else:
        # Zero bytes are valid blocks, and decoding takes the same time whatever they say.
        parts = {name: np.zeros(part.shape, part.dtype.storage) for name, part in codec.layout(spec).items()}
    out = np.zeros(weights.shape, spec.dtype.numpy)
    bits = 8 * sum(part.nbytes for part in parts.values()) / weights.size
    notes: dict[str, float | str] = {"bits_per_weight": round(bits, 3)}
    size = weights.nbytes
    yield Case(f"decode {codec.name}", size, {"flyweight": lambda: codec.decode(spec, parts, out)}, "write", notes=notes)
    if codec.encodes and codec.spec != RAW:  # encoding to plain numbers copies nothing
        yield Case(f"encode {codec.name}", size, {"flyweight": lambda: quantize(weights, codec, spec)}, "read", notes=notes)
