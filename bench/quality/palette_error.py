"""What palettes cost in error on a real model, beside affine grids: the table of docs/formats/palette.md, as Markdown.

    python -m bench.quality.palette_error .models/SmolLM2-135M-Instruct.Q4_1.gguf

Every sixth matrix. The columns of each are permuted at random, because the model was quantized in groups of 32 columns that
a grid with groups of 32 or 64 would find again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from flyweight.checkpoint import open_checkpoint
from flyweight.codecs import Codec
from flyweight.codecs.affine import Affine
from flyweight.codecs.palette import Palette
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS

Array = np.ndarray[Any, Any]

ROWS: tuple[tuple[str, tuple[tuple[str, str, Codec], ...]], ...] = tuple(
    (
        f"{bits}",
        (
            ("uniform, one table", "nearest", Palette(bits)),
            ("kmeans, one table", "kmeans", Palette(bits)),
            *((("kmeans, a table per 8 rows", "kmeans", Palette(bits, 8)),) if bits < 8 else ()),
            *((("kmeans, pairs, one table", "kmeans", Palette(2 * bits, vector=2)),) if 2 * bits in (2, 4, 6, 8) else ()),
            ("affine per row", "nearest", Affine(bits, 0, scale="f16")),
            ("affine, groups of 64", "nearest", Affine(bits, 64, scale="f16")),
        ),
    )
    for bits in (1, 2, 3, 4, 6, 8)
)


def matrices(path: str) -> Iterator[Array]:
    rng = np.random.default_rng(0)
    with open_checkpoint(path) as model:
        names = [name for name, entry in model.manifest.entries.items() if len(entry.spec.shape) == 2 and "blk." in name]
        for name in names[::6]:
            weights = model[name]
            yield np.ascontiguousarray(weights[:, rng.permutation(weights.shape[1])])


def main(path: str) -> None:
    sample = [(weights, TensorSpec(weights.shape, DType.F32)) for weights in matrices(path)]
    count = sum(weights.size for weights, _ in sample)
    power = sum(float((weights.astype(np.float64) ** 2).sum()) for weights, _ in sample)
    print(f"{len(sample)} matrices, {count / 1e6:.1f} M weights\n")
    print("| bits | how | bits per weight | relative error | SNR |\n|---|---|---|---|---|")
    for bits, ways in ROWS:
        for how, quantizer, codec in ways:
            nbytes, noise = 0, 0.0
            for weights, spec in sample:
                parts = QUANTIZERS[quantizer](weights, codec, spec)
                nbytes += sum(part.nbytes for part in parts.values())
                noise += float(((codec.decode(spec, parts) - weights).astype(np.float64) ** 2).sum())
            share = noise / power
            print(
                f"| {bits} | {how} | {8 * nbytes / count:.3f} | {100 * share**0.5:.2f} % | {-10 * np.log10(share):.2f} dB |",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
