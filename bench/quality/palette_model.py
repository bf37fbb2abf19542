"""What palettes cost a whole model: the second table of docs/formats/palette.md, as Markdown.

    python -m bench.quality.palette_model MODEL.gguf TEXT

As in `model`: channels permuted, the seven matrices of every layer through the codec and back, the embedding through q8_0, all
products in f32, 4 windows of 512 tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.quality.model import EMBEDDING, Judge, codec_named, there_and_back, through
from bench.quality.permute import permuted_beside

ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one table", {"bits": 4}),
    ("a table for 64 rows", {"bits": 4, "group": 64}),
    ("a table for 16 rows", {"bits": 4, "group": 16}),
    ("a table for 4 rows", {"bits": 4, "group": 4}),
    ("a table for each row", {"bits": 4, "group": 1}),
    ("a table for 16 columns", {"bits": 4, "group": 16, "axis": 1}),
    ("pairs along the columns of a row, one table", {"bits": 8, "vector": 2}),
    ("pairs of rows, one table", {"bits": 8, "vector": 2, "vector_axis": 0}),
    ("one table", {"bits": 6}),
    ("a table for 16 rows", {"bits": 6, "group": 16}),
    ("one table", {"bits": 8}),
    ("a table for 16 rows", {"bits": 8, "group": 16}),
)


def main(model: str, text: str) -> None:
    judge = Judge(permuted_beside(Path(model)), Path(text), 512, 4)
    embedding = there_and_back(codec_named("q8_0"), "nearest", np.asarray(judge.checkpoint[EMBEDDING]))
    print("| bits | tables | bits per weight, file | perplexity | KL, nats | same top |\n|---|---|---|---|---|---|")
    for how, params in ROWS:
        figures = through(judge, {"codec": "palette", "params": params, "quantizer": "kmeans"}, embedding)
        perplexity, kl, top = (figures[name]["value"] for name in ("perplexity", "kl_mean", "same_top"))
        bits = f"{params['bits']}" + (f" for {params['vector']}" if "vector" in params else "")
        print(
            f"| {bits} | {how} | {figures['file_bits_per_weight']:.3f} | {perplexity:.4g} | {kl:.3g} | {100 * top:.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
