"""The decision for one model: its tiers, best first; of each, the one in the user's cache, then the one beside the arrays."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from flyweight.checkpoint import Checkpoint, gated, open_checkpoint, require_passed
from flyweight.containers.npy_dir.forms import form_name
from flyweight.foundation.accuracy_gate import OVERRIDE, Measure
from flyweight.foundation.errors import FlyweightError, GateError, MalformedError, OutputError, ResourceError, UnsupportedError
from flyweight.foundation.manifest import Manifest
from flyweight.runtime.read_ahead import Front
from flyweight.tiers import store
from flyweight.tiers.arrays import Arrays
from flyweight.tiers.choosing import Choice, Tell
from flyweight.tiers.digests import weights_stamps
from flyweight.tiers.opening import open_tier
from flyweight.tiers.sentinel import read_sentinel
from flyweight.tiers.state import State, state_in, tier_digest
from flyweight.tiers.tier_table import ARRAYS, TIERS, Home, Tier

_TRIES = 3
"""How often a tier may be replaced under our eyes."""

Opened = tuple[Checkpoint, Choice]


class Decision:
    def __init__(
        self, root: Path, build: bool, max_ram: int | None, allow_ungated: bool, tell: Tell, measure: Measure | None,
        *, deep: bool = False,
    ) -> None:  # fmt: skip
        self.root, self.build, self.max_ram, self.allow_ungated, self.tell = root, build, max_ram, allow_ungated, tell
        self.measure, self.deep = measure, deep
        self.memory = max_ram or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.arrays = Arrays(root)
        self.beside = Home(root, root)
        self.states: list[State] = []

    @cached_property
    def own(self) -> Home | None:
        """Where the user's cache has tiers of these arrays; nowhere if the arrays are damaged, which a build will say."""
        try:
            return self.arrays.home()
        except MalformedError:
            return None

    def best(self) -> Opened:
        for tier in TIERS:
            self._prefetch(tier)
            for home in (self.own, self.beside):
                if taken := self._considered(home, tier):
                    return taken
        if self.build:
            packed = TIERS[0]
            self.tell(f"building the tier {packed.name}; later starts use it")
            state, built = self._built(packed, self.states[0])
            if state.standing == "ready" and (taken := self._open(self.own, packed, state, built)):
                return taken
            self.states[0] = state
        return self._arrays("no tier is ready" if not self.build else self.states[0].reason)

    def _considered(self, home: Home | None, tier: Tier) -> Opened | None:
        """The tier if it may be run; else what was found of it is kept."""
        state, built = self._state(home, tier), False
        if state.standing == "damaged" and self.build and not state.in_place:
            self.tell(f"the tier {tier.name} is damaged ({state.reason}): building it again")
            state, built = self._built(tier, state)
            home = self.own
        if state.standing == "ready" and tier.dtype and state.nbytes > self.memory:
            state = state._replace(reason=f"its {state.nbytes} bytes do not fit in {self.memory} bytes of memory")
        elif self._is_barred(state):
            state = state._replace(reason=f"has not passed its accuracy gate: {state.ungated}")
        elif state.standing == "ready" and (taken := self._open(home, tier, state, built)):
            return taken
        if state.standing != "absent" or not state.in_place:
            self.states.append(state)
        return None

    def named(self, name: str) -> Opened:
        tier = next((tier for tier in TIERS if tier.name == name), None)
        if tier is None or tier.is_model:  # which is called as arrays may be
            checkpoint, choice = self._arrays("asked for")
            if name in (ARRAYS, choice.tier):
                return checkpoint, choice
            checkpoint.close()
            if tier is None:
                raise UnsupportedError(
                    f"its arrays are {choice.tier}, not {name}", code="E_TIER", file=str(self.root), hint="--tier arrays"
                )
        assert tier is not None
        self._prefetch(tier)
        own, beside = (self._state(home, tier) for home in (self.own, self.beside))
        found = next((state for state in (own, beside) if state.standing == "ready" and not self._is_barred(state)), None)
        if found and (taken := self._open(self._home(found), tier, found, False)):
            return taken
        if beside.standing == "foreign" and (taken := self._foreign(tier, beside)):
            return taken
        state, built = (own if own.standing != "absent" or beside.standing == "absent" else beside), False
        if state.standing != "ready" and self.build:
            self.tell(f"building the tier {tier.name} ({own.reason})")
            state, built = self._build(tier)
        if self._is_barred(state):
            raise GateError(state.ungated, file=str(self.root), hint=OVERRIDE)
        if state.standing == "ready" and (taken := self._open(self._home(state), tier, state, built)):
            return taken
        raise UnsupportedError(
            f"the tier {name} is {state.standing}: {state.reason}", code="E_TIER", file=str(self.root),
            hint=f"flyweight cache build --tier {name} {self.root}",
        )  # fmt: skip

    def _state(self, home: Home | None, tier: Tier) -> State:
        return state_in(home, tier, self.arrays, deep=self.deep)

    def _home(self, state: State) -> Home | None:
        return self.beside if state.in_place else self.own

    def _prefetch(self, tier: Tier) -> None:
        """Most likely it is ready, so its weights may as well be read while that is found out."""
        if tier.holds != "file":
            return
        with suppress(OSError, OutputError):
            if home := self.arrays.home_of(self.arrays.recorded):
                Front(home.path / tier.place)
            elif self.arrays.beside(tier.name)[0]:
                Front(self.root / tier.place)

    def _foreign(self, tier: Tier, state: State) -> Opened | None:
        """A tier beside the arrays that someone else built and that was asked for by name: if all its digests hold."""
        sentinel = read_sentinel(self.root, tier)
        try:
            if (
                sentinel is None
                or sentinel.source != self.arrays.digest()
                or tier_digest(self.beside, tier) != sentinel.weights
            ):
                return None
        except (FlyweightError, OSError):
            return None
        with open_checkpoint(self.root) as arrays:
            require_passed(arrays, allow_ungated=self.allow_ungated)
        with open_tier(self.beside, tier) as made:
            ungated = sentinel.ungated or ("its accuracy was not measured by you" if gated(made.manifest) else "")
        state = state._replace(standing="ready", reason="was not built by you", ungated=ungated)
        if self._is_barred(state):
            raise GateError(ungated, file=str(self.root), hint=OVERRIDE)
        self.tell(f"the tier {tier.name} was not built by you; it runs because --tier names it. `flyweight verify` checks it")
        return self._open(self.beside, tier, state, False)

    def _built(self, tier: Tier, state: State) -> tuple[State, bool]:
        """The tier built, or its state with the reason why it was not.

        A gate that is not passed is one too: another tier may be run, and arrays ask their own gate when they are.
        """
        try:
            return self._build(tier)
        except (ResourceError, OutputError, GateError) as error:
            reason = f"{error.file}: {error.message}" if error.code == "E_FOREIGN" else error.message
        except OSError as error:
            reason = f"{error.filename or self.root}: {error.strerror}"
        self.tell(f"the tier {tier.name} is not built: {reason}")
        return state._replace(reason=f"not built: {reason}"), False

    def _build(self, tier: Tier) -> tuple[State, bool]:
        from flyweight.tiers.building import build  # whoever only starts a model needs nothing of it

        built = build(
            self.arrays, tier.name, max_ram=self.max_ram, allow_ungated=self.allow_ungated, tell=self.tell, measure=self.measure
        )
        self.__dict__.pop("own", None)
        return state_in(self.own, tier, self.arrays), not built.already

    def _is_barred(self, state: State) -> bool:
        return state.standing == "ready" and bool(state.ungated) and not self.allow_ungated

    def _open(self, home: Home | None, tier: Tier, state: State, built: bool) -> Opened | None:
        """The tier that was found ready, unless its gate bars it, or it was replaced or removed since."""
        for _ in range(_TRIES):
            if home is None or state.standing != "ready" or self._is_barred(state):
                break
            try:
                checkpoint = open_tier(home, tier)
            except FileNotFoundError:
                pass
            else:
                if weights_stamps(home.path, tier) == state.files:
                    if not home.in_place:
                        store.touch(home, tier)
                    why = f"{'built now' if built else 'ready'}: {tier.about}{' (beside the arrays)' if home.in_place else ''}"
                    return checkpoint, Choice(tier.name, why, (*self.states, state), built)
                checkpoint.close()
            state = state_in(home, tier, self.arrays)
        return None

    def _arrays(self, why: str) -> Opened:
        checkpoint = open_checkpoint(self.root)
        return checkpoint, Choice(_form_at_rest(checkpoint.manifest), f"the arrays as they are: {why}", tuple(self.states))


def _form_at_rest(manifest: Manifest) -> str:
    """What the arrays of an npy-dir are called: by the form that most of the quantized weights have."""
    sizes = Counter[str]()
    for entry in manifest.entries.values():
        if form := form_name(entry):
            sizes[form] += entry.spec.size
    return sizes.most_common(1)[0][0] if sizes else "dense"
