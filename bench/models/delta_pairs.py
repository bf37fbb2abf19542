"""Pairs of a base and a fine-tune to measure deltas on.

MiniLM     all-MiniLM-L6-v2 and a published fine-tune (`tools/fetch_bench_weights.py`), f32 as shipped, or rounded to bf16
σ = …      bf16 weights drawn from N(0, 0.02), and the same plus N(0, σ), rounded to bf16
RL-like    the same with a σ so small that 1.2 % of the weights change after rounding, as reinforcement learning does
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import flyweight
from flyweight.foundation.dtypes import DType

__all__ = ["BASE", "TUNED", "Pair", "pairs"]

Array = np.ndarray[Any, Any]
BASE, TUNED = Path(".models/minilm-base.safetensors"), Path(".models/minilm.safetensors")
WEIGHTS = 8 << 20
CHANGED = 0.012


@dataclass(frozen=True)
class Pair:
    """Flat arrays of one type, of the tensors that both models have."""

    name: str
    base: list[Array]
    tuned: list[Array]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tuned)


def pairs() -> Iterator[Pair]:
    if BASE.exists() and TUNED.exists():
        with flyweight.open(BASE) as base, flyweight.open(TUNED) as tuned:
            shared = [name for name in tuned if name in base and base[name].dtype == np.float32]
            for dtype in (DType.BF16, DType.F32):
                of = [[model[name].ravel().astype(dtype.numpy) for name in shared] for model in (base, tuned)]
                yield Pair(f"MiniLM, {dtype}", *of)
    else:
        print(f"{BASE} or {TUNED} is not here (tools/fetch_bench_weights.py): measuring without real weights")
    random = np.random.default_rng(0)
    base = (random.standard_normal(WEIGHTS, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    noise = random.standard_normal(WEIGHTS, np.float32)
    for name, sigma in (("5e-4", 5e-4), ("1e-4", 1e-4), ("1e-5", 1e-5)):
        yield Pair(f"σ = {name}, bf16", [base], [_moved(base, noise, sigma)])
    yield Pair("RL-like, bf16", [base], [_moved(base, noise, _step_of(base, noise))])


def _moved(base: Array, noise: Array, sigma: float) -> Array:
    return (base.astype(np.float32) + np.float32(sigma) * noise).astype(base.dtype)


def _step_of(base: Array, noise: Array) -> float:
    """The σ at which so many weights change, by bisection of its logarithm on a part of them."""
    some, low, high = slice(1 << 20), 1e-9, 1e-4
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        changed = np.mean(_moved(base[some], noise[some], middle) != base[some])
        low, high = (middle, high) if changed < CHANGED else (low, middle)
    return low
