"""Codes with error feedback, on lines that somebody else has found: what `gptq` is made of, whatever the codec.

Some rows of a matrix, turned: arrays are (columns, rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array
from flyweight.codecs.lines import Lines

BLOCK = 256
"""Columns that are worked on together."""
_STRETCH = 64
"""Columns that are coded before the others of their block hear of their errors."""


class Factors(NamedTuple):
    gram: Array
    feedback: Array
    """U, with D on its diagonal."""


class Part(NamedTuple):
    """Columns that are worked on together, and their lines."""

    columns: slice
    lines: Lines


class CodedRows:
    def __init__(self, values: Array, factors: Factors) -> None:
        self.values, self.gram, self.feedback = values, factors.gram, factors.feedback
        self.error, self.codes = np.zeros_like(values), np.zeros(values.shape, np.uint8)

    def adjusted(self, columns: slice) -> Array:
        """Values of columns with what the errors of all later ones ask of them."""
        adjusted = self.values[columns].copy()
        kernels.add_products(self.feedback, columns.start, columns.stop, self.error[columns.stop :], adjusted)
        return adjusted

    def code(self, part: Part) -> None:
        """First codes, with feedback from all later columns, which are coded already."""
        block, lines = part
        adjusted = self.adjusted(block)
        for stretch in reversed(_stretches(part)):
            own = adjusted[stretch.start - block.start : stretch.stop - block.start]
            some = lines_of(lines, block, stretch)
            kernels.feedback_codes(
                self.values[stretch], own, self.feedback, stretch.start, some.scale, some.bias, some.group, some.levels,
                self.codes[stretch], self.error[stretch],
            )  # fmt: skip
            before = adjusted[: stretch.start - block.start]
            kernels.add_products(self.feedback, block.start, stretch.start, self.error[stretch], before)

    def pull(self, columns: slice) -> Array:
        """Error · gram."""
        pull = np.zeros_like(self.values[columns])
        kernels.add_products(self.gram, columns.start, 0, self.error, pull)
        return pull

    def descend(self, part: Part, pull: Array) -> None:
        """Better codes beside all others."""
        block, lines = part
        kernels.descend_codes(
            pull, self.gram, block.start, lines.scale, lines.bias, lines.group, lines.levels, self.codes[block],
            self.error[block],
        )  # fmt: skip


def pieces(columns: slice, length: int) -> Iterator[slice]:
    for start in range(columns.start, columns.stop, length):
        yield slice(start, min(start + length, columns.stop))


def parts_of(columns: slice, lines: Lines) -> list[Part]:
    """Whole groups, as many as are worked on together; or pieces of one, where it has more columns than that."""
    if lines.group <= BLOCK:
        blocks = list(pieces(columns, BLOCK // lines.group * lines.group))
    else:
        blocks = [piece for group in pieces(columns, lines.group) for piece in pieces(group, BLOCK)]
    return [Part(block, lines_of(lines, columns, block)) for block in blocks]


def _stretches(part: Part) -> list[slice]:
    """Whole groups, or pieces of one."""
    group = part.lines.group
    length = _STRETCH if group % _STRETCH == 0 or group > BLOCK else max(_STRETCH // group, 1) * group
    return list(pieces(part.columns, length))


def lines_of(lines: Lines, columns: slice, some: slice) -> Lines:
    """Of the groups of some of the columns, which are whole groups or within one."""
    first = (some.start - columns.start) // lines.group
    return lines.some(slice(first, first - (some.start - some.stop) // lines.group))
