"""What is known of the inputs x that a matrix is multiplied with, and so of what an error of its weights costs.

An error e in a row of weights changes an output by e·x, on average by the square  E[(e·x)²] = eᵀ·E[x·xᵀ]·e. The diagonal of
that matrix, the mean of x² for each column, is the importance of the columns; the whole of it is the Gram matrix.
Statistics are gathered by running a model over text (`flyweight calibrate`), far above whoever quantizes: so `Statistics` is a
protocol here, handed down from where the program is put together, as `accuracy_gate.Measure` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class InputStatistics:
    """Of the inputs of one matrix. Matrices with the same inputs (q, k and v; gate and up) share one such object."""

    importance: Array
    """(columns,): finite numbers of 0 or more, in any unit; the mean of x² where they were measured."""
    gram: Array | None = None
    """f32 (columns, columns), symmetric: the mean of x·xᵀ. None: only its diagonal is known."""
    tokens: int = 0
    """How many inputs the means are over; 0: not known."""

    @property
    def has_gram(self) -> bool:
        return self.gram is not None

    def output_error(self, error: Array) -> float:
        """The mean of Σ (E·x)² over the inputs, of all rows of E together; without a Gram matrix as if columns were
        independent."""
        import numpy as np

        if (gram := self.gram) is None:
            return float(np.square(error, dtype=np.float64).sum(axis=0) @ self.importance.astype(np.float64))
        return float(np.einsum("ij,ij->", error @ gram, error, dtype=np.float64))

    def repeated(self, times: int) -> InputStatistics:
        """Of rows that hold so many rows of the matrix one after the other, whose columns are then others."""
        if times == 1:
            return self
        import numpy as np

        return InputStatistics(np.tile(self.importance, times), None, self.tokens)


class Statistics(Protocol):
    """Statistics of a model, by the names that its matrices have in a Hugging Face directory."""

    def inputs_of(self, name: str) -> InputStatistics | None:
        """Of the inputs of this matrix; None where nothing is known of them, as of an embedding that is only looked up."""
