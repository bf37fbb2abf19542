"""Blocks of a tensor that share a scale, of one length along each axis.

The lengths are written from axis 0 on, joined by "x"; 0 stands for the whole axis, as do axes that are not named:

    ""        one block: a scale per tensor
    "1"       a row of a matrix, an output channel of a convolution
    "1x32"    32 neighbours of a row
    "8x16"    8 rows by 16 columns
    "0x1"     a column

A length divides its axis. A vector counts as a matrix of one row, so that one row of a matrix means the same as a vector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from flyweight.codecs.codec import Array
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.limits import MAX_RANK
from flyweight.foundation.tensor import TensorSpec

_SHORT = 64
"""Elements of a run: to repeat a number for fewer is faster than a loop over them."""
_LENGTH = re.compile(r"0|[1-9][0-9]{0,9}")


def block_lengths(block: object) -> tuple[int, ...]:
    """The lengths that a text names, axis 0 first; ValueError if it is no such text."""
    if not isinstance(block, str):
        raise ValueError(f"block must be text such as '1x32', not {block!r}")
    texts = block.split("x") if block else []
    if len(texts) > MAX_RANK or not all(map(_LENGTH.fullmatch, texts)):
        raise ValueError(f"block must be at most {MAX_RANK} lengths joined by x, such as '1x32', not {block!r}")
    return tuple(map(int, texts))


@dataclass(frozen=True)
class Blocking:
    """How the blocks of one tensor lie in memory."""

    shape: tuple[int, ...]
    """Of the tensor, a vector as one row."""
    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    """Blocks along each axis."""
    stored_shape: tuple[int, ...]
    """The same with the rank of the tensor: the shape of its scales."""

    @classmethod
    def of(cls, spec: TensorSpec, block: tuple[int, ...]) -> Blocking:
        """The blocks of a tensor of rank 1 or more; UnsupportedError if it cannot be cut into them."""
        shape = spec.shape if len(spec.shape) > 1 else (1, *spec.shape)
        if len(block) > len(shape):
            raise UnsupportedError(f"{spec} has fewer than the {len(block)} axes that blocks are given for", code="E_SPEC")
        named = (*block, *(0,) * (len(shape) - len(block)))
        lengths = tuple(length or max(axis, 1) for length, axis in zip(named, shape, strict=True))
        if any(axis % length for length, axis in zip(lengths, shape, strict=True)):
            cut = "×".join(map(str, lengths))
            raise UnsupportedError(f"{spec} is not a whole number of blocks of {cut}", code="E_SPEC")
        counts = tuple(axis // length for length, axis in zip(lengths, shape, strict=True))
        return cls(shape, lengths, counts, counts if len(spec.shape) > 1 else counts[1:])

    # Decoding follows memory: `run` neighbours share a block, and a block may have many runs.

    @cached_property
    def _cut_axis(self) -> int:
        """The last axis of more than one block."""
        return max((axis for axis, count in enumerate(self.counts) if count > 1), default=0)

    @cached_property
    def run(self) -> int:
        return self.lengths[self._cut_axis] * prod(self.shape[self._cut_axis + 1 :])

    @property
    def row(self) -> int:
        """Elements along the last axis that is cut, and all within them: rows of so many are whole runs."""
        return self.run * (self.counts[self._cut_axis] if self._cut_axis else 1)

    @cached_property
    def in_order(self) -> bool:
        """Whether every block is a single run, so that blocks follow one another in memory."""
        return all(length == 1 for length in self.lengths[: self._cut_axis])

    def of_runs(self, numbers: Array, first: int, last: int) -> Array:
        """A number per block as one for each of the runs from `first` up to `last`, (1, runs)."""
        if self.in_order:
            return numbers.reshape(1, -1)[:, first:last]
        cut, along = self._cut_axis, self.counts[self._cut_axis]
        start, stop = first // along, -(-last // along)  # rows of runs, each along the cut axis
        places = np.unravel_index(np.arange(start, stop), self.shape[:cut])
        blocks = [place // length for place, length in zip(places, self.lengths[:cut], strict=True)]
        rows = numbers.reshape(-1, along)[np.ravel_multi_index(blocks, self.counts[:cut])]
        return rows.reshape(1, -1)[:, first - start * along : last - start * along]

    def of_elements(self, numbers: Array, start: int, stop: int) -> Array:
        """A number per block as one for each of the elements from `start` up to `stop`, (1, elements)."""
        first, last = start // self.run, -(-stop // self.run)
        of_runs = self.of_runs(numbers, first, last)
        if self.run == 1:
            return of_runs
        lengths = np.full(last - first, self.run)
        lengths[0] -= start - first * self.run
        lengths[-1] -= last * self.run - stop
        repeated: Array = of_runs[0].repeat(lengths)
        return repeated[None]

    def apply(self, operation: np.ufunc, values: Array, numbers: Array, start: int) -> None:
        """operation(value, the number of its block) in place, for the elements from `start`, (1, elements)."""
        if self.run < _SHORT:
            operation(values, self.of_elements(numbers, start, start + values.size), out=values)
            return
        at, stop = start, start + values.size
        while at < stop:  # to the end of the run that is under way, then all whole runs, then the rest
            whole = stop - (stop - at) % self.run
            end = whole if at % self.run == 0 and whole > at else min(at - at % self.run + self.run, stop)
            first, last = at // self.run, -(-end // self.run)
            some = values[:, at - start : end - start].reshape(last - first, -1)
            operation(some, self.of_runs(numbers, first, last).reshape(-1, 1), out=some)
            at = end

    # Encoding follows the blocks: one after the other, each row-major.

    @property
    def block_size(self) -> int:
        return prod(self.lengths)

    def to_block_order(self, array: Array) -> Array:
        """(1, elements)"""
        if self.in_order:
            return np.ascontiguousarray(array).reshape(1, -1)
        split = array.reshape([length for pair in zip(self.counts, self.lengths, strict=True) for length in pair])
        return np.ascontiguousarray(split.transpose(*self._turned)).reshape(1, -1)

    def peaks(self, array: Array) -> Array:
        """The greatest magnitude of each block, (1, blocks)."""
        starts = np.arange(0, array.size, self.block_size)
        ends = [extreme.reduceat(self.to_block_order(array), starts, axis=1) for extreme in (np.maximum, np.minimum)]
        peaks: Array = np.maximum(ends[0], -ends[1])
        return peaks

    def from_block_order(self, flat: Array) -> Array:
        """The inverse of `to_block_order`, (1, elements) in the order of the tensor."""
        if self.in_order:
            return flat
        turned = flat.reshape(*self.counts, *self.lengths).transpose(*np.argsort(self._turned))
        return np.ascontiguousarray(turned).reshape(1, -1)

    @property
    def _turned(self) -> tuple[int, ...]:
        """Axes of blocks before axes within a block."""
        axes = 2 * len(self.shape)
        return (*range(0, axes, 2), *range(1, axes, 2))
