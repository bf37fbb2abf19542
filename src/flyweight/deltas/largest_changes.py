"""What lossy kinds store something of: the differences of two arrays in f32, a range at a time, and the largest of them."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import as_float, astype
from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas.kind import Array, Elements, ranges
from flyweight.foundation.errors import UnsupportedError

NOT_FINITE, BEYOND_F16 = "is NaN or infinite for some weights", "is greater than f16 allows"
"""Why a change is not stored, for `not_stored`."""

_EVERY_MAGNITUDE = 1 << 31
_INFINITE = 0x7F800000
_COUNTER_BITS = 20
"""At most so many counters, 8 MB: between two magnitudes that a sample gives, each then often has one of its own, and all are
counted once."""
_SAMPLE, _SLICE, _FEWEST_SLICES = 1 << 18, 1 << 8, 16
"""Changes in a sample, and how many of them lie side by side: rows may differ, so that few should be of one."""


class Changes:
    """tuned − base, both as f32: (start, differences (1, n)) for each range. They are valid until the next is asked for."""

    def __init__(self, base: Elements, tuned: Elements, size: int) -> None:
        self.size = size
        self._base, self._tuned = base, tuned

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        buffer = np.empty((1, min(self.size, CHUNK)), np.float32)
        for start, stop in ranges(self.size):
            yield start, self._read(start, stop, buffer[:, : stop - start])

    def sample(self) -> Array:
        """Differences in slices from all over the array, (slices, elements): 1/256 of it or less; none where that is little."""
        slices = min(self.size >> 8, _SAMPLE) // _SLICE
        found = np.empty((slices if slices >= _FEWEST_SLICES else 0, _SLICE), np.float32)
        for number, row in enumerate(found):
            start = (self.size - _SLICE) * number // (slices - 1)
            self._read(start, start + _SLICE, row.reshape(1, -1))
        return found

    def _read(self, start: int, stop: int, out: Array) -> Array:
        base, tuned = as_float(self._base(start, stop)), as_float(self._tuned(start, stop))
        if base.dtype != tuned.dtype:
            base, tuned = astype(base, np.dtype(np.float32)), astype(tuned, np.dtype(np.float32))
        kernels.difference(base.reshape(1, -1), tuned.reshape(1, -1), out)
        return out


class Kept(NamedTuple):
    """What is kept of one range."""

    start: int
    delta: Array
    """All of the range, (1, n)."""
    places: Array
    values: Array


class Largest:
    """The `count` changes of the largest magnitude; of equal ones those that come first.

    Their magnitudes are those above a threshold, which is found by counting: all magnitudes at first, or, in a large array,
    those near where a sample has it; then those of the one counter that it is in.
    """

    def __init__(self, changes: Changes, count: int) -> None:
        self._changes = changes
        self.threshold, self.ties, self.greatest = _threshold(changes, count) if count else (_EVERY_MAGNITUDE - 1, 0, 0)
        """The least magnitude among them, how many have it, and the greatest magnitude."""
        self.rest = np.zeros(0, np.float32)
        """The least and the greatest of the others, known at the end of a loop over the ranges; infinite if there are none."""

    def __iter__(self) -> Iterator[Kept]:
        places, values = (np.empty((1, min(self._changes.size, CHUNK)), dtype) for dtype in (np.int64, np.float32))
        state = np.array([[0, self.ties]], np.uint64)
        rest = np.array([[np.inf, -np.inf]], np.float32)
        for start, delta in self._changes:
            size = delta.shape[1]
            kernels.keep_largest(delta, self.threshold, start, places[:, :size], values[:, :size], state, rest)
            kept = int(state[0, 0])
            yield Kept(start, delta, places[:, :kept], values[:, :kept])
        self.rest = rest[0]


def not_stored(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the change from the base {what}", code="E_DELTA_VALUES", hint="store this tensor with strategy exact"
    )


def _threshold(changes: Changes, count: int) -> tuple[int, int, int]:
    """Of the `count` largest changes the least magnitude, how many of them have it, and the greatest magnitude."""
    low, high = _guess(changes, count)
    largest = np.zeros((1, 1), np.uint32)
    while True:
        shift = max(0, (high - low - 1).bit_length() - min(_COUNTER_BITS, max(changes.size.bit_length() - 4, 8)))
        counts = np.zeros((1, (high - low - 1 >> shift) + 2), np.uint64)
        for _, delta in changes:
            kernels.magnitude_counts(delta, low, shift, counts, largest)
        if largest[0, 0] >= _INFINITE:
            raise not_stored(NOT_FINITE)
        from_top = np.cumsum(counts[0, ::-1])
        found = int(np.searchsorted(from_top, np.uint64(count)))
        if not 0 < found < len(from_top):
            low, high = 0, _EVERY_MAGNITUDE  # the sample misled
            continue
        counter = len(from_top) - 1 - found
        low, high = low + (counter << shift), low + (counter + 1 << shift)
        if not shift:
            return low, count - int(from_top[found - 1]), int(largest[0, 0])


def _guess(changes: Changes, count: int) -> tuple[int, int]:
    """Between which magnitudes the last of the `count` largest changes likely lies."""
    sample = np.abs(changes.sample()).view(np.uint32)
    if not sample.size:
        return 0, _EVERY_MAGNITUDE
    rank, ordered = count * sample.size // changes.size, np.sort(sample, axis=None)[::-1]
    above = (sample > ordered[min(rank, sample.size - 1)]).sum(axis=1)
    margin = int(4 * above.std() * sqrt(len(sample))) + 4  # four deviations; slices differ by chance, and as rows do
    first, last = rank - margin, rank + margin
    return int(ordered[last]) if last < sample.size else 0, int(ordered[first]) + 1 if first > 0 else _EVERY_MAGNITUDE
