"""Weights and blocks to quantize as coremltools does: ordinary ones, and those at the ends of what types hold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SHAPES = {
    (7, 12): ("", "1", "0x1", "1x3", "7x4", "0x6"),
    (5, 3, 3, 2): ("", "1", "0x1", "5x1x3x1"),
    (8, 64): ("", "1", "1x32"),
    (33,): ("", "1x11"),
}
DATA = ("i8", "u8", "i4", "u4")
MODES = ("linear", "linear_symmetric")
KINDS = 9


class Case(NamedTuple):
    weight: np.ndarray
    block: str


def drawn(seed: int) -> Case:
    """One of KINDS kinds of weights, of f16 or f32, and blocks of them."""
    rng = np.random.default_rng(seed)
    shape = list(SHAPES)[int(rng.integers(len(SHAPES)))]
    block = SHAPES[shape][int(rng.integers(len(SHAPES[shape])))]
    dtype = (np.float16, np.float32)[int(rng.integers(2))]
    normal = rng.standard_normal(shape)
    rows = (shape[0], *(1,) * (len(shape) - 1))
    match int(rng.integers(KINDS)):
        case 0:
            made = normal * 10.0 ** rng.integers(-9, 6)
        case 1:
            made = np.full(shape, rng.standard_normal())
        case 2:
            made = rng.choice([0.0, -0.0], shape)
        case 3:
            made = normal * 6e-8 * rng.integers(1, 200)  # subnormal in f16
        case 4:
            made = np.abs(normal)
        case 5:
            made = -np.abs(normal)
        case 6:
            made = np.round(normal * 16) / 16  # ties
        case 7:
            made = normal * 10.0 ** rng.integers(-6, 5, rows)
        case _:
            made = np.where(rng.random(shape) < 0.5, 0, normal)
    held = np.clip(made, -65504, 65504) if dtype == np.float16 else made
    return Case(held.astype(dtype), block)
