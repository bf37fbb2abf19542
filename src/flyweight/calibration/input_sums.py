"""What is added up of one input x over all tokens.

    importance     Σ x² / n                        each channel, the sums in f64
    Gram matrix    Σ s²·x·xᵀ / n                   s = min(1, 2·m / |x|), m: the median of |x| over the first 2,048 positions

The first tokens of windows have inputs that are hundreds of times as large as others. Uncapped, they alone would decide what
an error costs; left out, they are what gets worst. So their weight in the Gram matrix is capped; importance, which other tools
read as well, stays what it is.

Each tile of a Gram matrix is one product at a time, whichever thread computes it: so the bytes do not depend on the number of
threads. They do on the instruction set (`kernels.add_gram`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.foundation.errors import MalformedError
from flyweight.statistics_files.gram_form import tiles

Array = np.ndarray[Any, Any]

CAP = 2.0
"""How many times the median norm the inputs of a token count at most."""
FIRST = 2048
_ROWS = 256
"""Of which f64 copies are made at a time."""


def _norms(x: Array) -> Array:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", x, x)))


class InputSums:
    """`together` carries out calls for several tiles: `map`, or that of a pool of threads."""

    def __init__(self, name: str, columns: int, *, gram: bool, together: Callable[..., Iterable[None]] = map) -> None:
        self.name, self.columns, self.tokens = name, columns, 0
        self._together = together
        self._squares = np.zeros(columns)
        self._limit: float | None = None
        self._first: list[Array] = []
        """Inputs that wait until there are enough of them for a median."""
        self._tiles = [np.zeros((stop - start, stop), np.float32) for start, stop in tiles(columns)] if gram else []

    def add(self, x: Array) -> None:
        """f32 (n, columns), of which nothing is kept."""
        for start in range(0, len(x), _ROWS):
            self._squares += np.square(x[start : start + _ROWS], dtype=np.float64).sum(axis=0)
        if not np.isfinite(self._squares).all():
            raise MalformedError(
                f"what {self.name} is multiplied with is not finite", code="E_NOT_FINITE", tensor=f"{self.name}.weight",
                hint="`flyweight verify` shows whether the weights are finite",
            )  # fmt: skip
        self.tokens += len(x)
        if not self._tiles:
            return
        if self._limit is None:
            self._first.append(x.copy())
            if self.tokens >= FIRST:
                self._decide()
        else:
            self._add_gram(x)

    def _decide(self) -> None:
        """The largest norm that counts in full, from what has come by now, which is then added."""
        first, self._first = self._first, []
        norms = [_norms(x) for x in first]
        self._limit = CAP * float(np.median(np.concatenate(norms))) if norms else 0.0
        for x in first:
            self._add_gram(x)

    def _add_gram(self, x: Array) -> None:
        assert self._limit is not None
        norms = _norms(x)
        large = norms > self._limit
        if large.any():
            weights = np.divide(self._limit, norms, out=np.ones_like(norms), where=large)
            x = x * weights[:, None]

        def add(tile: Array, rows: tuple[int, int]) -> None:
            kernels.add_gram(x, rows[0], tile)

        for _ in self._together(add, self._tiles, tiles(self.columns)):
            pass

    def importance(self) -> Array:
        return (self._squares / max(self.tokens, 1)).astype(np.float32)

    def gram(self) -> list[Array]:
        """The tiles of the lower triangle of the mean, which are then this caller's."""
        if self._tiles and self._limit is None:
            self._decide()
        for tile in self._tiles:
            tile /= np.float32(max(self.tokens, 1))
        return self._tiles
