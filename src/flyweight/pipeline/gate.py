"""An output before its gate: measured where it lies, before it appears.

The output is held against the checkpoint it was made from. A tensor of three bits that was copied would be held against
itself, so it goes by the verdict of its source; if there is none, or other tensors came along, nothing can be said: no pass.
"""

from __future__ import annotations

from pathlib import Path

from flyweight import gate
from flyweight.checkpoint import open_checkpoint, require_passed, subject
from flyweight.errors import FlyweightError
from flyweight.gate import Verdict
from flyweight.pipeline.plan import Plan

__all__ = ["judge"]


def judge(plan: Plan, staged: Path, *, text: Path | str | None, threads: int | None, max_ram: int | None) -> Verdict | None:
    """The verdict on a finished output that is not published yet; None if no gate is due."""
    if plan.gate is None:
        return None
    gated = set(plan.container.gated(plan.placement.manifest))
    about = ""
    if gated:
        with open_checkpoint(staged) as made:
            about = subject(made)
    if any(step.action in ("remux", "repack") for step in plan.steps if step.target.name in gated):
        return _inherited(plan, about)
    source = plan.checkpoint.bundle.name
    return gate.measure(source, staged, plan.gate, text=text, threads=threads, max_ram=max_ram).about(about)


def _inherited(plan: Plan, about: str) -> Verdict:
    assert plan.gate is not None
    source = plan.checkpoint
    name = Path(source.bundle.name).name
    try:
        require_passed(source)
        verdict = source.container.verdict(source.bundle)
        if verdict is not None and verdict.subject == about:
            return verdict
        reason = f"tensors of three bits were copied from {name}, whose own gate is not of them"
    except FlyweightError as error:
        reason = f"tensors of three bits were copied from {name}: {error.message}"
    return Verdict(plan.gate, source=name, subject=about, reason=reason)
