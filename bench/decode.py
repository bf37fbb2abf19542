"""How fast blocks become floats, beside gguf-py, in one process on one thread. MB/s of f32 output.

flyweight fills a buffer it is given, as its pipeline does; gguf-py's interface makes a new array. Two sizes: 8 MB is the
slab the pipeline decodes at a time; 64 MB is a whole matrix, where writing to memory is the bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np

from flyweight import kernels
from flyweight.bench import Case, main
from flyweight.codecs import ggml

TYPES = ("q4_0", "q8_0", "q4_k", "q6_k")
COLUMNS = 4096
Array = np.ndarray[Any, Any]


def ordinary_blocks(name: str, rows: int) -> Array:
    """Rows of random codes with scales as weights have them. (rows, bytes of a row)"""
    size, nbytes = kernels.BLOCKS[name]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (rows * COLUMNS // size, nbytes), dtype=np.uint8)
    for at, kind in next(codec for codec in ggml.CODECS if codec.name == name).scales:
        scales = rng.uniform(1e-4, 1e-2, (len(blocks), 1)).astype(kind)
        blocks[:, at : at + scales.itemsize] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def cases() -> Iterator[Case]:
    for megabytes in (8, 64):
        for name in TYPES:
            size, nbytes = kernels.BLOCKS[name]
            rows = ordinary_blocks(name, megabytes * 1_000_000 // (4 * COLUMNS))
            blocks, kind = rows.reshape(-1, nbytes), gguf.GGMLQuantizationType[name.upper()]
            ours = np.zeros((len(blocks), size), np.float32)
            decode = getattr(kernels, f"decode_{name}")
            decode(blocks, ours)
            if not np.array_equal(ours.ravel(), gguf.quants.dequantize(rows, kind).ravel()):
                sys.exit(f"{name}: our values differ from gguf-py's; a speed would mean nothing")
            yield Case(
                f"{name}, {megabytes} MB",
                ours.nbytes,
                {
                    "flyweight": lambda d=decode, b=blocks, o=ours: d(b, o),
                    "gguf-py": lambda r=rows, k=kind: gguf.quants.dequantize(r, k),
                },
                target="20× gguf-py",
            )


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=11)
