"""What callers hand to a conversion to measure with; it imports what runs models only when that is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyweight.foundation.accuracy_gate import Gate, Verdict

if TYPE_CHECKING:
    from flyweight.checkpoint import Checkpoint
    from flyweight.foundation.input_statistics import InputStatistics
    from flyweight.foundation.sensitivity import Cost
    from flyweight.runtime import Model

__all__ = ["measure", "measure_costs"]


def measure(source: Path | str, artefact: Path | str, gate: Gate, **options: Any) -> Verdict:
    """A `Measure` for the accuracy gate: `evaluate.gate_measure.measure`."""
    from flyweight.evaluate import gate_measure

    return gate_measure.measure(source, artefact, gate, **options)


def measure_costs(
    checkpoint: Checkpoint, inputs_of: Callable[[str], InputStatistics | None], **options: Any
) -> Mapping[str, Cost]:
    """A `MeasureCosts`: `evaluate.sensitivity.measure_costs`, on the texts that Flyweight comes with."""
    from flyweight.calibration.sampling import sample_windows
    from flyweight.calibration.shipped import shipped_texts
    from flyweight.evaluate import sensitivity

    def windows(model: Model, count: int, length: int) -> Any:
        return sample_windows(model, shipped_texts(), count, length)

    return sensitivity.measure_costs(checkpoint, inputs_of, windows=windows, **options)
