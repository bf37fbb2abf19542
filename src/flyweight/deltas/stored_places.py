"""Places in an array as a file stores them: flat positions, ascending."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from flyweight.deltas.kind import Array, StoredArray, require

PIECE = 1 << 16
"""How many elements of a stored array are read at a time where all are."""
_MARK = 1 << 12


class StoredPlaces:
    def __init__(self, stored: StoredArray, size: int) -> None:
        """Of an array of `size` elements. No place is read."""
        require(len(stored) <= size, f"{len(stored)} places are stored for an array of {size}")
        self._stored, self._size = stored, size

    def check(self) -> None:
        """MalformedError unless the places ascend and lie in the array."""
        assert self._marks is not None

    def within(self, start: int, stop: int) -> slice:
        """Which of the stored places lie in a range."""
        before, after = np.searchsorted(self._marks, [start, stop])
        first, last = max(int(before) - 1, 0) * _MARK, int(after) * _MARK
        near = self._stored[first:last]
        return slice(*(first + int(at) for at in np.searchsorted(near, [start, stop])))

    @cached_property
    def _marks(self) -> Array:
        """Every so many-th place: it takes less memory than the file has bytes, whatever size the array claims to have."""
        marks, last = [np.zeros(0, np.int64)], -1
        for start in range(0, len(self._stored), PIECE):
            piece = self._stored[start : start + PIECE]
            ascending = last < int(piece[0]) and bool((piece[1:] > piece[:-1]).all())
            last = int(piece[-1])
            require(ascending and last < self._size, f"the places do not ascend, or are not below {self._size}")
            marks.append(piece[::_MARK].astype(np.int64))
        return np.concatenate(marks)


def not_finite(arrays: Mapping[str, StoredArray]) -> str | None:
    """A complaint about the first array that has NaN or infinity. They are read a piece at a time."""
    for label, stored in arrays.items():
        for start in range(0, len(stored), PIECE):
            if not np.isfinite(stored[start : start + PIECE]).all():
                return f"{label} has NaN or infinity"
    return None
