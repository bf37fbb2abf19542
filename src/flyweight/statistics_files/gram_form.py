"""A Gram matrix G (n, n) as it is stored: what it has on its diagonal, and the correlations of its columns.

    diagonal       f32 (n,)              d = diag(G)
    correlations   f16 (n · (n + 1) / 2,)  c[i, j] = G[i, j] / √(d[i] · d[j]),  j ≤ i, row after row; 0 where a d is 0

A correlation lies between -1 and 1 whatever the sizes of activations, so f16 holds all of them to 2⁻¹² or better.
While it is gathered G is the tiles of its lower triangle: rows a … b with the columns 0 … b.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flyweight.foundation.errors import MalformedError

Array = np.ndarray[Any, Any]

TILE = 256
"""Rows of a tile; of 8,960 columns it takes 9 MB at most."""
_ABOVE_ONE = 1.01
"""No correlation is larger, f16 and f32 rounding counted."""


def packed_size(columns: int) -> int:
    return columns * (columns + 1) // 2


def tiles(columns: int) -> Iterator[tuple[int, int]]:
    for start in range(0, columns, TILE):
        yield start, min(start + TILE, columns)


def diagonal_of(lower: Sequence[Array]) -> Array:
    """f32 (n,) from the tiles of the lower triangle."""
    return np.concatenate([tile[np.arange(len(tile)), np.arange(tile.shape[1] - len(tile), tile.shape[1])] for tile in lower])


def pack(lower: Sequence[Array], diagonal: Array) -> Iterator[Array]:
    """The correlations of each tile's rows, f16, one run after the other."""
    inverse = np.divide(1.0, np.sqrt(diagonal), out=np.zeros(len(diagonal), np.float32), where=diagonal > 0)
    for tile in lower:
        stop = tile.shape[1]
        start = stop - len(tile)
        scaled = (tile * inverse[start:stop, None] * inverse[:stop]).astype(np.float16)
        yield np.concatenate([row[: start + index + 1] for index, row in enumerate(scaled)])


def unpack(correlations: Array, diagonal: Array, *, name: str) -> Array:
    """G, f32 (n, n). MalformedError for numbers that are no correlations."""
    columns = len(diagonal)
    gram = np.empty((columns, columns), np.float32)
    at = 0
    for row in range(columns):
        gram[row, : row + 1] = correlations[at : at + row + 1]
        at += row + 1
    roots = np.sqrt(diagonal, dtype=np.float32)
    for start, stop in tiles(columns):
        part = gram[start:stop, :stop]
        part[:, start:] = np.tril(part[:, start:])
        if not (np.abs(part) <= _ABOVE_ONE).all():  # nor NaN
            raise MalformedError("its correlations are not all between -1 and 1", code="E_STATISTICS", tensor=name)
        part *= roots[start:stop, None]
        part *= roots[:stop]
        part[:, start:] += np.tril(part[:, start:], -1).T
        gram[:start, start:stop] = part[:, :start].T
    np.fill_diagonal(gram, diagonal)
    return gram
