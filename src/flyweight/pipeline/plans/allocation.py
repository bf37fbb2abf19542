"""Which form each tensor gets, so that all together cost least in a given number of bytes.

A tensor has some options, each of so many bytes and so much loss; losses add up. Those that are worth taking at some price of
a byte are the corners of the tensor's lower convex hull, from the smallest up; between two neighbours so much loss is saved
for each byte. All such steps of all tensors, the one that saves most for a byte first, lead from the smallest model there is to
the best: a prefix of them is the best model of its size, a `Point` of the frontier. What is left of a budget goes to the steps
behind that still fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Option(NamedTuple, Generic[K]):
    what: K
    nbytes: int
    loss: float


class Point(NamedTuple):
    nbytes: int
    loss: float


@dataclass(frozen=True)
class _Step(Generic[K]):
    """From an option of a tensor to the next larger one."""

    tensor: str
    place: int
    """Of the option it leads to, in the hull."""
    nbytes: int
    saved: float

    @property
    def order(self) -> tuple[float, str, int]:
        return -self.saved / self.nbytes, self.tensor, self.place


def hull(options: Sequence[Option[K]]) -> list[Option[K]]:
    """The options worth taking at some price of a byte, from the smallest up."""
    corners: list[Option[K]] = []
    for option in sorted(options, key=lambda option: (option.nbytes, option.loss)):
        if corners and option.loss >= corners[-1].loss:
            continue
        while len(corners) > 1 and _saves(corners[-2], corners[-1]) <= _saves(corners[-2], option):
            corners.pop()
        corners.append(option)
    return corners


def _saves(small: Option[K], large: Option[K]) -> float:
    """Loss for each byte; they differ in bytes."""
    return (small.loss - large.loss) / (large.nbytes - small.nbytes)


class Allocation(Generic[K]):
    """The frontier of a model whose tensors have these options."""

    def __init__(self, options: Mapping[str, Sequence[Option[K]]]) -> None:
        self._hulls = {tensor: hull(each) for tensor, each in options.items()}
        self._steps = [
            _Step[K](tensor, place, large.nbytes - small.nbytes, small.loss - large.loss)
            for tensor, corners in self._hulls.items()
            for place, (small, large) in enumerate(pairwise(corners), 1)
        ]
        self._steps.sort(key=lambda step: step.order)

    @property
    def smallest(self) -> Point:
        first = [corners[0] for corners in self._hulls.values()]
        return Point(sum(option.nbytes for option in first), sum(option.loss for option in first))

    @property
    def largest(self) -> Point:
        return self.frontier()[-1]

    def frontier(self) -> list[Point]:
        """Every size at which nothing smaller is as good, from the smallest up."""
        points = [self.smallest]
        for step in self._steps:
            last = points[-1]
            points.append(Point(last.nbytes + step.nbytes, last.loss - step.saved))
        return points

    def within(self, nbytes: int) -> dict[str, Option[K]]:
        """The best options of at most so many bytes, of which there are at least those of the smallest."""
        left = nbytes - self.smallest.nbytes
        places = dict.fromkeys(self._hulls, 0)
        for step in self._steps:
            if step.nbytes <= left and places[step.tensor] == step.place - 1:
                places[step.tensor] = step.place
                left -= step.nbytes
        return {tensor: self._hulls[tensor][place] for tensor, place in places.items()}
