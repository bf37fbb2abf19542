"""Which tier a model is run from: the best that may be used, and why none of those before it.

    packed > int4 > int3 > cache > finalized > the arrays themselves

A tier that was built here and no longer holds is built again. Where there is none, `packed` is built: it is the smallest, and
has the arrays' own values. What cannot be built (no room, a directory that cannot be written) is said, and the arrays, which
always can be run, are. A decoded tier that is larger than the memory is passed over: every token would read it from disk.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.errors import OutputError, ResourceError, UnsupportedError
from flyweight.manifest import Manifest
from flyweight.runtime.model import Model, open_model
from flyweight.tiers.opening import open_tier
from flyweight.tiers.seal import read_seal
from flyweight.tiers.state import State, state_of, weights_stamps
from flyweight.tiers.table import ARRAYS, AUTO, NATIVE, TIERS, Tier, has_tiers, tier_named

__all__ = ["Choice", "at_rest", "open_best", "open_model_from"]

_TRIES = 3
"""How often a tier may be replaced under our eyes."""
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
        return {"tier": self.tier, "why": self.why, "built": self.built, "considered": [s.as_json() for s in self.considered]}


def at_rest(manifest: Manifest) -> str:
    """What the arrays of an npy-dir are called: by the form that most of the quantised weights have."""
    sizes = Counter[str]()
    for entry in manifest.entries.values():
        bits = entry.codec.params.get("bits", 3 if entry.codec.name == "corrected" else 0)
        if entry.codec.name != "raw":
            sizes[f"int{bits}" if bits else entry.codec.name] += entry.spec.size
    return sizes.most_common(1)[0][0] if sizes else "dense"


def open_model_from(
    path: Path | str,
    *,
    tier: str = AUTO,
    build: bool = True,
    max_ram: int | None = None,
    tell: Tell = lambda _: None,
    **settings: Any,
) -> tuple[Model, Choice]:
    """`runtime.open_model` of the tier that `open_best` takes."""
    checkpoint, choice = open_best(path, tier=tier, build=build, max_ram=max_ram, tell=tell)
    return open_model(checkpoint, max_ram=max_ram, **settings), choice


def open_best(
    path: Path | str, *, tier: str = AUTO, build: bool = True, max_ram: int | None = None, tell: Tell = lambda _: None
) -> tuple[Checkpoint, Choice]:
    """Open a model from one of its tiers: the best, or the one that is named."""
    root = Path(path)
    if not has_tiers(root):
        if tier not in (AUTO, NATIVE):
            raise UnsupportedError("only an npy-dir has tiers", code="E_TIER", file=str(path), hint="leave --tier out")
        checkpoint = open_checkpoint(path)
        return checkpoint, Choice(NATIVE, f"{checkpoint.container.title}: run as it is")
    look = _Look(root, build, max_ram, tell)
    return look.best() if tier == AUTO else look.named(tier)


class _Look:
    def __init__(self, root: Path, build: bool, max_ram: int | None, tell: Tell) -> None:
        self.root, self.build, self.max_ram, self.tell = root, build, max_ram, tell
        self.memory = max_ram or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.states: list[State] = []

    def best(self) -> tuple[Checkpoint, Choice]:
        for tier in TIERS:
            state = state_of(self.root, tier)
            built = False
            if state.standing in ("stale", "damaged") and self.build:
                self.tell(f"the tier {tier.name} is {state.standing} ({state.reason}): building it again")
                state, built = self._built(tier, state)
            if state.standing == "ready" and tier.decoded and state.nbytes > self.memory:
                state = state._replace(reason=f"{state.nbytes} bytes would not stay in {self.memory} of memory")
            elif state.standing == "ready" and (taken := self._open(tier, state, built)):
                return taken
            self.states.append(state)
        if self.build:
            packed = TIERS[0]
            self.tell(f"building the tier {packed.name}, which later starts will map")
            state, built = self._built(packed, self.states[0])
            if state.standing == "ready" and (taken := self._open(packed, state, built)):
                return taken
            self.states[0] = state
        return self._arrays("no tier is ready" if not self.build else self.states[0].reason)

    def named(self, name: str) -> tuple[Checkpoint, Choice]:
        arrays = self._arrays("asked for")
        if name in (ARRAYS, arrays[1].tier):
            return arrays
        arrays[0].close()
        if name in (NATIVE, "int8"):
            raise UnsupportedError(
                f"its arrays are {arrays[1].tier}, not {name}", code="E_TIER", file=str(self.root), hint="--tier arrays"
            )
        tier = tier_named(name)
        state, built = state_of(self.root, tier), False
        if state.standing != "ready" and self.build:
            self.tell(f"building the tier {tier.name} ({state.reason})")
            state, built = _build(self.root, tier, self.max_ram, self.tell)
        if state.standing == "ready" and (taken := self._open(tier, state, built)):
            return taken
        raise UnsupportedError(
            f"the tier {name} is {state.standing}: {state.reason}", code="E_TIER", file=str(self.root),
            hint=f"flyweight cache build --tier {name} {self.root}",
        )  # fmt: skip

    def _built(self, tier: Tier, state: State) -> tuple[State, bool]:
        """The tier built, or its state with the reason why it was not."""
        try:
            return _build(self.root, tier, self.max_ram, self.tell)
        except (ResourceError, OutputError) as error:
            reason = error.message
        except OSError as error:
            reason = f"{error.filename or self.root}: {error.strerror}"
        self.tell(f"the tier {tier.name} is not built: {reason}")
        return state._replace(reason=f"not built: {reason}"), False

    def _open(self, tier: Tier, state: State, built: bool) -> tuple[Checkpoint, Choice] | None:
        """The tier that was found ready, unless it was replaced since by one that does not hold."""
        for _ in range(_TRIES):
            checkpoint = open_tier(self.root, tier)
            seal = read_seal(self.root, tier)
            if seal is not None and weights_stamps(self.root, tier) == seal.weights.files:
                why = f"{'built now' if built else 'ready'}: {tier.about}"
                return checkpoint, Choice(tier.name, why, (*self.states, state), built)
            checkpoint.close()
            if state_of(self.root, tier).standing != "ready":
                break
        return None

    def _arrays(self, why: str) -> tuple[Checkpoint, Choice]:
        checkpoint = open_checkpoint(self.root)
        return checkpoint, Choice(at_rest(checkpoint.manifest), f"its arrays as they are: {why}", tuple(self.states))


def _build(root: Path, tier: Tier, max_ram: int | None, tell: Tell) -> tuple[State, bool]:
    from flyweight.tiers.building import build  # whoever only starts a model needs nothing of it

    made = build(root, tier.name, max_ram=max_ram, tell=tell)
    return State(tier.name, "ready", tier.about, made.nbytes), not made.already
