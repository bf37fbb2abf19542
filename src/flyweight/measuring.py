"""What callers hand to a conversion to measure with; it imports what runs models only when that is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyweight.foundation.accuracy_gate import Gate, Verdict
from flyweight.foundation.source_check import SourceCheck

if TYPE_CHECKING:
    from flyweight.checkpoint import Checkpoint
    from flyweight.foundation.input_statistics import InputStatistics
    from flyweight.foundation.sensitivity import Cost
    from flyweight.runtime import Model

__all__ = ["check", "measure", "measure_costs", "size_to_run_in"]


def measure(source: Path | str, artefact: Path | str, gate: Gate, **options: Any) -> Verdict:
    """A `Measure` for the accuracy gate: `evaluate.gate_measure.measure`."""
    from flyweight.evaluate import gate_measure

    return gate_measure.measure(source, artefact, gate, **options)


CHECK_TOKENS, _WINDOW = 2048, 128
"""How much text a check takes."""


def check(source: Path | str, artefact: Path | str, **options: Any) -> SourceCheck:
    """A `CheckAgainstSource`, on text that Flyweight comes with and that no statistics are gathered on."""
    from flyweight.calibration.shipped import shipped_texts
    from flyweight.evaluate import gate_measure

    written = "\n\n".join(text.content for text in shipped_texts(held_back=True))
    return gate_measure.check(source, artefact, written, tokens=CHECK_TOKENS, window=_WINDOW, **options)


def measure_costs(
    checkpoint: Checkpoint, inputs_of: Callable[[str], InputStatistics | None], **options: Any
) -> Mapping[str, Cost]:
    """A `MeasureCosts`: `evaluate.cost_trials.measure_costs`, on the texts that Flyweight comes with."""
    from flyweight.calibration.sampling import sample_windows
    from flyweight.calibration.shipped import shipped_texts
    from flyweight.evaluate import cost_trials

    def windows(model: Model, count: int, length: int) -> Any:
        return sample_windows(model, shipped_texts(), count, length)

    return cost_trials.measure_costs(checkpoint, inputs_of, windows=windows, **options)


def size_to_run_in(ram: int, source: Path | str, *, deltas: Sequence[Path | str] = ()) -> int:
    """Bytes that a form of a model may take to run in so much memory, with the program and a context of the default length."""
    from flyweight.checkpoint import open_checkpoint
    from flyweight.foundation.errors import UnsupportedError
    from flyweight.models import blueprint
    from flyweight.runtime.model import beside_weights

    with open_checkpoint(source, deltas=deltas) as checkpoint:
        beside = beside_weights(blueprint(checkpoint.manifest, checkpoint.read).config)
    if ram <= beside:
        raise UnsupportedError(
            f"running this model takes {beside:,} bytes besides its weights, and {ram:,} are allowed", code="E_TARGET",
            file=str(source), hint="allow more with --target-ram",
        )  # fmt: skip
    return ram - beside
