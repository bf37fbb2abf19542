"""How fast floats become K blocks, beside ggml's own encoder, in one process on one thread. MB/s of f32 input.

The notes give both relative errors: speed means nothing without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.kernels.peers import quantizer
from flyweight import kernels
from flyweight.bench.harness import Case, Work, main

ROWS, COLUMNS = 256, 4096
Array = np.ndarray[Any, Any]


def relative_error(name: str, blocks: Array, values: Array) -> float:
    out = np.empty((len(blocks), kernels.BLOCKS[name][0]), np.float32)
    getattr(kernels, f"decode_{name}")(blocks, out)
    difference = (out.reshape(values.shape) - values).astype(np.float64)
    return float(np.linalg.norm(difference) / np.linalg.norm(values.astype(np.float64)))


def cases() -> Iterator[Case]:
    values = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    for name in kernels.SEARCHED:
        size, nbytes = kernels.BLOCKS[name]
        ours, theirs = (np.zeros((values.size // size, nbytes), np.uint8) for _ in range(2))
        rows, weights, encode = values.reshape(-1, size), np.ones((1, size), np.float32), getattr(kernels, f"encode_{name}")
        contenders: dict[str, Work] = {"flyweight": lambda e=encode, r=rows, w=weights, o=ours: e(r, w, o)}
        made = {"error_%": ours}
        if by_ggml := quantizer(name, values, theirs):
            contenders["libggml"] = by_ggml
            made["error_ggml_%"] = theirs
        for work in contenders.values():
            work()
        notes = {label: round(100 * relative_error(name, blocks, values), 3) for label, blocks in made.items()}
        yield Case(name, values.nbytes, contenders, limit="read", target="1× libggml", notes=notes)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=5)
