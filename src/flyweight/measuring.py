"""The measure that callers hand to a conversion; it imports `evaluate` only when an accuracy gate needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flyweight.foundation.accuracy_gate import Gate, Verdict

__all__ = ["measure"]


def measure(source: Path | str, artefact: Path | str, gate: Gate, **options: Any) -> Verdict:
    """A `Measure` for the accuracy gate: `evaluate.gate_measure.measure`."""
    from flyweight.evaluate import gate_measure

    return gate_measure.measure(source, artefact, gate, **options)
