"""Weights that training did not touch, and that weight decay still moved: by how many steps, as a function of the weight.

A weight that no gradient reaches loses the same number of steps (of its last bit) in every update, as long as it is in the same
place between two powers of two. Rows of an embedding whose tokens do not occur in the training text are like that, and are most
of some models. So a base is moved by the usual number of steps before a fine-tune is compared with it: a number for each cell,
that is for each exponent and the first BITS bits of the mantissa.

    i32 × 2   for each cell that moves, ascending: the cell, and its steps

A magnitude that would leave its range stays where it is, and the sign is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flyweight.deltas.kind import Array, Elements, require

BITS = 6
"""Of the mantissa: with more, a table is longer than what it saves."""
_SAMPLE, _SLICE = 1 << 17, 1 << 10
_FEWEST = 8
"""Weights of a sample that must agree on a cell's steps, and at least a quarter of the cell."""
_MOST_STEPS = 1 << 20
MAX_CELLS = 1 << (8 + BITS)
CELL_NBYTES = 8
_I4 = np.dtype("<i4")
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SHIFT = np.uint32(23 - BITS)


class Drift:
    """The steps of some cells of f32 words: (n, 2), cell and steps."""

    def __init__(self, pairs: Array) -> None:
        self.cells = len(pairs)
        """How many move."""
        self.stored = np.ascontiguousarray(pairs, _I4).reshape(-1).view(np.uint8)
        self._table = np.zeros(MAX_CELLS, np.int32)
        self._table[pairs[:, 0]] = pairs[:, 1]

    @classmethod
    def read(cls, stored: Array) -> Drift:
        """MalformedError unless the cells ascend and exist."""
        pairs = np.frombuffer(stored.tobytes(), _I4).reshape(-1, 2).astype(np.int64)
        cells, steps = pairs.T
        sound = bool((cells >= 0).all() and (cells < MAX_CELLS).all() and (np.diff(cells) > 0).all())
        require(sound and bool((np.abs(steps) <= _MOST_STEPS).all()), "its drift is not a table of cells and steps")
        return cls(pairs)

    def moved(self, words: Array) -> Array:
        """The words of a base, u32, as weight decay would have left them."""
        if not self.cells:
            return words
        magnitude = words & _MAGNITUDE
        moved = magnitude.view(np.int32) + self._table[magnitude >> _SHIFT]  # of 31 bits and 21: no sum is beyond 32
        return np.where((moved < 0) | (moved.view(np.uint32) > _MAGNITUDE), words, words & ~_MAGNITUDE | moved.view(np.uint32))


NO_DRIFT = Drift(np.zeros((0, 2), np.int64))


def find_drift(base: Elements, tuned: Elements, size: int) -> Drift:
    """What a sample says of two arrays of f32 words."""
    samples = [[read(*where) for where in _sampled(size)] for read in (base, tuned)]
    if not samples[0]:
        return NO_DRIFT
    before, after = (np.concatenate(pieces).view(np.uint32) for pieces in samples)
    steps = (after & _MAGNITUDE).astype(np.int64) - (before & _MAGNITUDE)
    usual = ((before ^ after) >> 31 == 0) & (np.abs(steps) <= _MOST_STEPS)
    cells = ((before & _MAGNITUDE) >> _SHIFT).astype(np.int64)
    span = 2 * _MOST_STEPS + 1
    pairs, counts = np.unique(cells[usual] * span + steps[usual] + _MOST_STEPS, return_counts=True)
    return Drift(_likeliest(pairs // span, pairs % span - _MOST_STEPS, counts, np.bincount(cells, minlength=MAX_CELLS)))


def _likeliest(cells: Array, steps: Array, counts: Array, sizes: Array) -> Array:
    """The steps that most weights of a cell took, where enough did and it is not 0."""
    order = np.lexsort((counts, cells))
    last = np.append(cells[order][1:] != cells[order][:-1], True)[: len(order)]
    cells, steps, counts = cells[order][last], steps[order][last], counts[order][last]
    sure = (steps != 0) & (counts >= _FEWEST) & (4 * counts >= sizes[cells])
    return np.stack([cells[sure], steps[sure]], axis=1)


def _sampled(size: int) -> Iterator[tuple[int, int]]:
    """Slices from all over an array."""
    if size <= _SAMPLE:
        yield from [(0, size)] if size else []
        return
    count = _SAMPLE // _SLICE
    for number in range(count):
        start = (size - _SLICE) * number // (count - 1)
        yield start, start + _SLICE
