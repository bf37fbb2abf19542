"""Measuring a staged output for its accuracy gate, before it is published.

The output is held against the checkpoint it was made from. A tensor of three bits that was copied would be held against
itself, so where a format records gates it goes by the verdict of its source; if there is none, or other tensors came along,
nothing can be said: no pass.
"""

from __future__ import annotations

from pathlib import Path

from flyweight.checkpoint import Checkpoint, open_checkpoint, recorded, require_passed, subject
from flyweight.foundation.accuracy_gate import Gate, Measure, Verdict
from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline.plans.job import Job


def judge(
    job: Job,
    staged: Path,
    measure: Measure | None,
    *,
    text: Path | str | None,
    threads: int | None,
    max_ram: int | None,
) -> Verdict | None:
    """The verdict on a finished output that is not published yet; None if no gate is due."""
    gate, source = job.gate, job.checkpoint.bundle.name
    if gate is None:
        return None
    about, names = "", set(job.gated)
    if names:
        with open_checkpoint(staged) as made:
            about = subject(made)
    if any(step.action in ("remux", "repack") for step in job.plan.steps if step.name in names):
        return _inherited(job.checkpoint, gate, about)
    if measure is None:
        return Verdict(gate, source=Path(source).name, subject=about, reason="there is no way to measure it")
    return measure(source, staged, gate, text=text, threads=threads, max_ram=max_ram).about(about)


def _inherited(source: Checkpoint, gate: Gate, about: str) -> Verdict:
    name = Path(source.bundle.name).name
    try:
        require_passed(source)
        verdict = recorded(source)
        if verdict is not None and verdict.subject == about:
            return verdict
        reason = f"three-bit tensors were copied from {name}, whose accuracy gate was passed by other arrays"
    except FlyweightError as error:
        reason = f"three-bit tensors were copied from {name}: {error.message}"
    return Verdict(gate, source=name, subject=about, reason=reason)
