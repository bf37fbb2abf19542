"""Choosing the tier a model is run from: the best usable one, and why the ones before it are not.

    packed > int4 > int3 > cache > finalized > the arrays themselves

A tier in the user's cache that no longer holds is built again. Where there is none, `packed` is built: it is the smallest, and
has the arrays' own values. What cannot be built (no room, a cache that cannot be written) is said, and the arrays, which always
can be run, are. A decoded tier that is larger than the memory is passed over: every token would read it from disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.foundation.accuracy_gate import Measure
from flyweight.foundation.errors import UnsupportedError
from flyweight.runtime.model import Model, open_model
from flyweight.tiers.tier_table import ARRAYS, AUTO, NATIVE, has_tiers

if TYPE_CHECKING:
    from flyweight.tiers.state import State

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """The tier taken, why, and what was found of each that was looked at."""

    tier: str
    why: str
    considered: tuple[State, ...] = ()
    built: bool = False
    """Whether it was built for this."""

    def as_json(self) -> dict[str, Any]:
        return {"name": self.tier, "why": self.why, "built": self.built, "considered": [s.as_json() for s in self.considered]}


def open_model_from(
    path: Path | str,
    *,
    deltas: Sequence[Path | str] = (),
    tier: str = AUTO,
    build: bool = True,
    max_ram: int | None = None,
    allow_ungated: bool = False,
    verify: bool = False,
    tell: Tell = lambda _: None,
    measure: Measure | None = None,
    **settings: Any,
) -> tuple[Model, Choice]:
    """`runtime.open_model` of the tier that `open_best` takes; to `verify` a tier, all of it and of its arrays is read."""
    checkpoint, choice = open_best(
        path, deltas=deltas, tier=tier, build=build, max_ram=max_ram, allow_ungated=allow_ungated, verify=verify, tell=tell,
        measure=measure,
    )  # fmt: skip
    return open_model(checkpoint, max_ram=max_ram, allow_ungated=allow_ungated, verify=verify, **settings), choice


def open_best(
    path: Path | str,
    *,
    deltas: Sequence[Path | str] = (),
    tier: str = AUTO,
    build: bool = True,
    max_ram: int | None = None,
    allow_ungated: bool = False,
    verify: bool = False,
    tell: Tell = lambda _: None,
    measure: Measure | None = None,
) -> tuple[Checkpoint, Choice]:
    """Open a model from one of its tiers: the best, or the one that is named.

    A tier whose weights of three bits have not passed their gate is passed over, and refused if named, unless `allow_ungated`;
    whoever runs arrays asks their own gate (`open_model`). `measure` is for a tier that is built and needs a gate.
    """
    root = Path(path)
    if deltas or not has_tiers(root):
        if tier not in (AUTO, ARRAYS, NATIVE):
            message = "a model with deltas on it has no tiers" if deltas else "only an npy-dir has tiers"
            raise UnsupportedError(message, code="E_TIER", file=str(path), hint="leave --tier out")
        checkpoint = open_checkpoint(path, deltas=deltas)
        count = len(checkpoint.delta_places)
        with_deltas = f" with {count} delta{'s' * (count > 1)}" if count else ""
        return checkpoint, Choice(NATIVE, f"{checkpoint.container.title}{with_deltas}: run as it is")
    from flyweight.tiers.decision import Decision  # which other models need not load

    decision = Decision(root, build, max_ram, allow_ungated, tell, measure, deep=verify)
    return decision.best() if tier == AUTO else decision.named(tier)
