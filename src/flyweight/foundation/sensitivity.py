"""What an error of each matrix costs a model, as a protocol.

Models are run by `evaluate`, far above whoever divides bytes among matrices. So what measures is handed down from where the
program is put together (`flyweight.api`), as `accuracy_gate.Measure` is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from flyweight.foundation.input_statistics import InputStatistics


class Cost(NamedTuple):
    """Of an error E of one matrix."""

    nats: float
    """KL divergence for each unit of the mean of Σ (E·x)² over the inputs x seen."""


class MeasureCosts(Protocol):
    def __call__(
        self,
        checkpoint: Any,
        inputs_of: Callable[[str], InputStatistics | None],
        /,
        *,
        threads: int | None = None,
        max_ram: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Mapping[str, Cost]:
        """Of the matrices of a checkpoint, which is closed then, by the names they have in a Hugging Face directory, which
        `inputs_of` takes too."""
