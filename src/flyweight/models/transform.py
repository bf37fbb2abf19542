"""How the stored values of a tensor differ from the canonical ones, and how they change between two dialects.

HF rotates halves of a head (rows j, j+d/2), and these are the canonical rows. GGUF's `llama` architecture rotates neighbouring
pairs (rows 2j, 2j+1), so it stores the rows of q and k interleaved, head by head of d rows:

    interleaved row  h·d + 2j + p   =   canonical row  h·d + p·(d/2) + j        p = 0, 1;  j = 0 … d/2 − 1

Gemma normalises with 1 + w, and w is the canonical value; GGUF stores 1 + w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flyweight.foundation.errors import MalformedError

if TYPE_CHECKING:
    import numpy as np


class Transform(NamedTuple):
    """How a target tensor comes from its source tensor: rows moved within each head, a constant added."""

    heads: int = 0
    """Number of heads whose rows are interleaved; 0 leaves the rows alone."""
    inverse: bool = False
    """De-interleave instead."""
    add: float = 0.0

    def rows(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Target row r comes from source row `rows[r]`; None when they stay as they are."""
        if not self.heads:
            return None
        import numpy

        if count % (2 * self.heads):
            raise MalformedError(f"{count} rows cannot be split into {self.heads} heads of an even size", code="E_HEADS")
        order = numpy.arange(count, dtype=numpy.int64)
        halves = (self.heads, -1, 2) if self.inverse else (self.heads, 2, count // self.heads // 2)
        return order.reshape(halves).swapaxes(1, 2).reshape(count)


class Renamed(NamedTuple):
    """What a source tensor is called in the target, and how its values change."""

    name: str
    transform: Transform | None = None


class Stored(NamedTuple):
    """A tensor in a dialect: its name there, and how its values differ from the canonical ones."""

    name: str
    heads: int = 0
    """Number of heads whose rows are interleaved; 0 when the rows are the canonical ones."""
    add: float = 0.0
    """What is added to every value."""

    def to(self, target: Stored) -> Renamed:
        """The same tensor on its way to another dialect."""
        moves = self.heads != target.heads  # then one of them is 0: the heads are those of the model
        change = Transform(max(self.heads, target.heads) * moves, bool(moves and self.heads), target.add - self.add)
        return Renamed(target.name, change if change != Transform() else None)
