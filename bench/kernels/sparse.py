"""Products that skip dropped blocks beside the same weights without a mask, 4096 × 4096, int8. Million weights a second.

Each run multiplies with one matrix after the other, together more than any cache holds, as a model does with its layers. Which
blocks are dropped is random in every row, the worst for prediction and prefetching. Runs of one scale are as long as blocks.
`core` is the same on one thread and 256 rows that stay in cache, by its own CPU time, the best of many: what the instructions
allow.

The last cases are tabled weights without a mask beside q4_0, and beside reading as many bytes as they store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.bench.harness import Case, main

Array = np.ndarray[Any, Any]

SIDE = 4096
THREADS = 2
WORKING_SET = 96_000_000
ROWS_IN_CACHE = 256
READERS = ThreadPoolExecutor(THREADS)


def tabled(rng: np.random.Generator, bits: int, length: int, dropped: float | None = None) -> kernels.Matrix:
    """Random weights; with a share to drop, a mask over blocks of `length`."""
    runs = SIDE // length
    codes = rng.integers(0, 256, (SIDE, runs, length * bits // 8), dtype=np.uint8)
    entries = np.zeros((SIDE, runs, 4), np.uint32)
    entries[..., 2:] = rng.uniform(1e-4, 1e-2, (SIDE, runs, 2)).astype(np.float32).view(np.uint32)
    if dropped is None:
        return kernels.matrix(f"tabled{bits}", codes=codes.reshape(SIDE, -1), entries=entries.reshape(SIDE, -1), length=length)
    kept = rng.random((SIDE, runs)).argsort(axis=1) >= int(dropped * runs)
    codes[~kept] = entries[~kept] = 0
    mask = np.packbits(kept, axis=1, bitorder="little")
    return kernels.matrix(
        f"tabled{bits}",
        codes=codes.reshape(SIDE, -1),
        entries=entries.reshape(SIDE, -1),
        length=length,
        block=length,
        mask=mask,
    )


def q4_0(rng: np.random.Generator) -> kernels.Matrix:
    blocks = rng.integers(0, 256, (SIDE, SIDE // 32, 18), dtype=np.uint8)
    blocks[..., :2] = np.float16([0.01]).view(np.uint8)
    return kernels.matrix("q4_0", blocks=blocks.reshape(SIDE, -1))


def without_mask(matrix: kernels.Matrix) -> kernels.Matrix:
    return kernels.Matrix(matrix.form, matrix.parts[:2], length=matrix.length)


def size_of(matrix: kernels.Matrix) -> int:
    return sum(part.nbytes for part in matrix.parts)


def multiplying(weights: list[kernels.Matrix], threads: int = THREADS) -> Callable[[], object]:
    x, out = np.random.default_rng(1).standard_normal((1, SIDE), np.float32), np.empty((1, weights[0].rows), np.float32)

    def work() -> None:
        for one in weights:
            kernels.multiply((one,), x, out, int8=True, threads=threads)

    return work


def in_core(*matrices: kernels.Matrix, runs: int = 60) -> list[float]:
    """The CPU time of each on one thread and a few rows, taken in turn."""
    works = [multiplying([matrix[:ROWS_IN_CACHE]], threads=1) for matrix in matrices]
    best = [float("inf")] * len(works)
    for _ in range(runs):
        for i, work in enumerate(works):
            start = time.thread_time()
            work()
            best[i] = min(best[i], time.thread_time() - start)
    return best


def copies(make: Callable[[np.random.Generator], kernels.Matrix]) -> list[kernels.Matrix]:
    rng = np.random.default_rng(0)
    first = make(rng)
    return [first, *(make(rng) for _ in range(WORKING_SET // size_of(first)))]


def masked_case(block: int, dropped: float) -> Case:
    weights = copies(lambda rng: tabled(rng, 4, block, dropped))
    dense = [without_mask(one) for one in weights]
    mine, theirs = in_core(weights[0], dense[0])
    contenders = {"flyweight": multiplying(weights), "dense": multiplying(dense)}
    return Case(
        f"blocks of {block}, {dropped:.0%} dropped",
        SIDE * SIDE * len(weights),
        contenders,
        limit="read2",
        notes={"core": f"{theirs / mine:.2f}× dense"},
    )


def dense_case(bits: int, length: int) -> Case:
    weights, blocks = copies(lambda rng: tabled(rng, bits, length)), copies(q4_0)
    blocks = (blocks * 4)[: len(weights)]
    mine, theirs = in_core(weights[0], blocks[0])
    halves = np.split(np.ones(size_of(weights[0]) * len(weights) // 8 * 2, np.float32), 2)
    contenders = {
        "flyweight": multiplying(weights),
        "q4_0": multiplying(blocks),
        "reading": lambda: list(READERS.map(np.max, halves)),
    }
    return Case(
        f"tabled{bits} by {length}",
        SIDE * SIDE * len(weights),
        contenders,
        limit="read2",
        notes={"core": f"{theirs / mine:.2f}× q4_0", "bits_per_weight": 8 * size_of(weights[0]) / SIDE**2},
    )


def cases() -> Iterator[Case]:
    for block in (64, 128):
        for dropped in (0.0, 0.25, 0.5, 0.75, 0.9):
            yield masked_case(block, dropped)
    for bits, length in ((4, 64), (4, 128), (4, SIDE), (2, 128)):
        yield dense_case(bits, length)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases)
