"""What a quantizer is: a way to fill the parts of some codecs, better or faster than nearest rounding.

A quantizer never changes what the bytes mean: whatever it returns, the codec decodes. A codec around another, or one with
the grids of another in bytes of its own, hands it on by itself (`Codec.filled_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flyweight.codecs import Array, Codec, Parts
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec

if TYPE_CHECKING:
    from flyweight.codecs.affine import Affine

_CHUNK = 1 << 18  # elements worked on at a time: temporaries stay in a few megabytes


@dataclass(frozen=True, slots=True)
class Quantizer:
    name: str
    takes: Callable[[Codec], bool]
    """Which codecs it fills itself."""
    fill: Callable[[Array, Any, TensorSpec, InputStatistics | None], Parts]
    """As `__call__`, for a codec that it takes."""
    memory: Callable[[Codec, int], int] = lambda *_: 0
    """Bytes it needs besides the values, for a codec and rows of so many columns."""

    def __call__(self, array: Array, codec: Codec, spec: TensorSpec, inputs: InputStatistics | None = None) -> Parts:
        """Parts of `codec` for `array`. `inputs` say what an error costs; their importance weighs the columns.

        Every quantizer takes them; one whose result cannot depend on them says so, and refuses bad importance all the same.
        """
        return codec.filled_by(self, spec, array, inputs)


def chunks(rows: Array, weights: Array) -> Iterator[tuple[slice, Array]]:
    """Runs of rows to work on one after the other, each with its weights (one row of them serves all)."""
    step = max(_CHUNK // max(rows.shape[1], 1), 1)
    for start in range(0, len(rows) if rows.size else 0, step):
        part = slice(start, start + step)
        yield part, weights if len(weights) == 1 else weights[part]


def group_columns(codec: Affine, rows: Array, weights: Array) -> tuple[Array, Array]:
    """Every group of some rows as a column, (elements, groups), and its weights; no rows of them where all weigh alike.

    A short last group is filled up with its last value at no weight.
    """
    columns = rows.shape[1]
    span = min(codec.span(columns), columns)
    short = -columns % span

    def turned(array: Array) -> Array:
        """(rows, columns) → (elements of a group, groups of all rows)"""
        return np.ascontiguousarray(array.reshape(len(array), -1, span).transpose(2, 0, 1)).reshape(span, -1)

    values = turned(np.pad(rows, ((0, 0), (0, short)), mode="edge") if short else rows)
    if not short and (weights == weights.flat[0]).all():
        return values, np.empty((0, values.shape[1]), np.float32)
    weight = np.pad(np.broadcast_to(weights, rows.shape), ((0, 0), (0, short)))
    return values, turned(weight)


def stored_or(codec: Affine, grid: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Scale and offset as they will be stored; those of `other`, which are, for groups whose own do not fit the type."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scale, offset = (new.astype(old.dtype) for new, old in zip(grid, other, strict=True))
    fits = codec.in_range(scale, offset) & (scale != 0)
    return np.where(fits, scale, other[0]), np.where(fits, offset, other[1])
