"""How the values of a tensor change between two dialects.

GGUF rotates neighbouring pairs of a head (rows 2j, 2j+1) where HF rotates halves (rows j, j+d/2), so for the
`llama` architecture the rows of q and k are interleaved, head by head of d rows:

    GGUF row  h·d + 2j + p   =   HF row  h·d + p·(d/2) + j        p = 0, 1;  j = 0 … d/2 − 1

Gemma normalises with (1 + w); GGUF stores 1 + w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flyweight.errors import MalformedError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Transform"]


class Transform(NamedTuple):
    """How a target tensor comes from its source tensor: rows moved within each head, a constant added."""

    heads: int = 0
    """Number of heads whose rows are interleaved (HF → GGUF); 0 leaves the rows alone."""
    inverse: bool = False
    """De-interleave instead (GGUF → HF)."""
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

    def inverted(self) -> Transform:
        return self._replace(inverse=not self.inverse, add=-self.add or 0.0)
