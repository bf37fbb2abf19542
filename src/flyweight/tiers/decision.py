"""Going through the tiers of one directory, best first."""

from __future__ import annotations

import os
from pathlib import Path

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.errors import GateError, OutputError, ResourceError, UnsupportedError
from flyweight.gate import OVERRIDE
from flyweight.runtime.ahead import Front
from flyweight.tiers.choosing import Choice, Tell, at_rest
from flyweight.tiers.opening import open_tier
from flyweight.tiers.state import State, state_of, weights_stamps
from flyweight.tiers.table import ARRAYS, NATIVE, TIERS, Tier, tier_named

__all__ = ["Decision"]

_TRIES = 3
"""How often a tier may be replaced under our eyes."""
_NEVER_ARRAYS = ("packed", "cache", "finalized")
"""Tiers whose names no form of arrays has."""


class Decision:
    def __init__(self, root: Path, build: bool, max_ram: int | None, allow_ungated: bool, tell: Tell) -> None:
        self.root, self.build, self.max_ram, self.allow_ungated, self.tell = root, build, max_ram, allow_ungated, tell
        self.memory = max_ram or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.states: list[State] = []

    def best(self) -> tuple[Checkpoint, Choice]:
        for tier in TIERS:
            state, built = self._state(tier), False
            if state.standing in ("stale", "damaged") and self.build:
                self.tell(f"the tier {tier.name} is {state.standing} ({state.reason}): building it again")
                state, built = self._built(tier, state)
            if state.standing == "ready" and tier.decoded and state.nbytes > self.memory:
                state = state._replace(reason=f"{state.nbytes} bytes would not stay in {self.memory} of memory")
            elif self._is_barred(state):
                state = state._replace(reason=f"has not passed its gate: {state.ungated}")
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
        if name not in _NEVER_ARRAYS:
            checkpoint, choice = self._arrays("asked for")
            if name in (ARRAYS, choice.tier):
                return checkpoint, choice
            checkpoint.close()
            if name in (NATIVE, "int8"):
                raise UnsupportedError(
                    f"its arrays are {choice.tier}, not {name}", code="E_TIER", file=str(self.root), hint="--tier arrays"
                )
        tier = tier_named(name)
        state, built = self._state(tier), False
        if state.standing != "ready" and self.build:
            self.tell(f"building the tier {tier.name} ({state.reason})")
            state, built = self._build(tier)
        if self._is_barred(state):
            raise GateError(state.ungated, file=str(self.root), hint=OVERRIDE)
        if state.standing == "ready" and (taken := self._open(tier, state, built)):
            return taken
        raise UnsupportedError(
            f"the tier {name} is {state.standing}: {state.reason}", code="E_TIER", file=str(self.root),
            hint=f"flyweight cache build --tier {name} {self.root}",
        )  # fmt: skip

    def _state(self, tier: Tier) -> State:
        """Most likely it is ready, so its weights may as well be read meanwhile."""
        if not tier.is_folder:
            Front(self.root / tier.place)
        return state_of(self.root, tier)

    def _built(self, tier: Tier, state: State) -> tuple[State, bool]:
        """The tier built, or its state with the reason why it was not.

        A gate that is not passed is one too: another tier may be run, and arrays ask their own gate when they are.
        """
        try:
            return self._build(tier)
        except (ResourceError, OutputError, GateError) as error:
            reason = error.message
        except OSError as error:
            reason = f"{error.filename or self.root}: {error.strerror}"
        self.tell(f"the tier {tier.name} is not built: {reason}")
        return state._replace(reason=f"not built: {reason}"), False

    def _build(self, tier: Tier) -> tuple[State, bool]:
        from flyweight.tiers.building import build  # whoever only starts a model needs nothing of it

        made = build(self.root, tier.name, max_ram=self.max_ram, allow_ungated=self.allow_ungated, tell=self.tell)
        return state_of(self.root, tier), not made.already

    def _is_barred(self, state: State) -> bool:
        return state.standing == "ready" and bool(state.ungated) and not self.allow_ungated

    def _open(self, tier: Tier, state: State, built: bool) -> tuple[Checkpoint, Choice] | None:
        """The tier that was found ready, unless its gate bars it, or it was replaced since by one that is not."""
        for _ in range(_TRIES):
            if state.standing != "ready" or self._is_barred(state):
                break
            checkpoint = open_tier(self.root, tier)
            if weights_stamps(self.root, tier) == state.files:
                why = f"{'built now' if built else 'ready'}: {tier.about}"
                return checkpoint, Choice(tier.name, why, (*self.states, state), built)
            checkpoint.close()
            state = state_of(self.root, tier)
        return None

    def _arrays(self, why: str) -> tuple[Checkpoint, Choice]:
        checkpoint = open_checkpoint(self.root)
        return checkpoint, Choice(at_rest(checkpoint.manifest), f"its arrays as they are: {why}", tuple(self.states))
