"""Whether a tier may be used.

ready        its seal holds: built from these arrays, and unchanged since
absent       it is not there
foreign      a sentinel that does not say what the tier was built from, such as Squish's
unfinished   weights without a sentinel: their builder was stopped
stale        the arrays are no longer those it was built from
damaged      its weights are not those that were written
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flyweight.errors import FlyweightError
from flyweight.tiers.opening import open_tier
from flyweight.tiers.seal import Proof, Seal, Stamp, content_digest, read_seal, source_digest, source_stamps, stamps, write_seal
from flyweight.tiers.table import LOCK, Tier

__all__ = ["Standing", "State", "locked", "state_of", "weights_stamps"]

Standing = Literal["ready", "absent", "foreign", "unfinished", "stale", "damaged"]


class State(NamedTuple):
    tier: str
    standing: Standing
    reason: str
    files: Mapping[str, Stamp] = {}
    """Its weights when they were looked at."""
    ungated: str = ""
    """What the accuracy gate says against it."""

    @property
    def nbytes(self) -> int:
        return sum(size for size, _, _ in self.files.values())

    def as_json(self) -> dict[str, Any]:
        return {"tier": self.tier, "standing": self.standing, "reason": self.reason, "nbytes": self.nbytes} | (
            {"ungated": self.ungated} if self.ungated else {}
        )


@contextmanager
def locked(root: Path, waiting: Callable[[], object] | None) -> Iterator[bool]:
    """Alone with the tiers of a directory. Without `waiting` there is no wait: False if someone else is at them."""
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                yield False
                return
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(descriptor)


def weights_stamps(root: Path, tier: Tier) -> dict[str, Stamp]:
    return {file: stamp for file, stamp in stamps(root, tier.place).items() if file != tier.sentinel}


def state_of(root: Path, tier: Tier, *, deep: bool = False) -> State:
    """Look at stamps, and where one has changed, or with `deep`, at every byte; a seal that holds gets the new stamps."""
    seal = read_seal(root, tier)
    found = weights_stamps(root, tier)
    if seal is None:
        if os.path.lexists(root / tier.sentinel):
            return State(tier.name, "foreign", f"{tier.sentinel} does not say what it was built from", found)
        if found:
            return State(tier.name, "unfinished", f"there is no {tier.sentinel}", found)
        return State(tier.name, "absent", "not built")
    if not found:
        return State(tier.name, "damaged", f"{tier.place} is missing")
    source = source_stamps(root)
    try:
        if (deep or source != seal.source.files) and source_digest(root) != seal.source.digest:
            return State(tier.name, "stale", "built from other arrays", found)
    except FlyweightError as error:
        return State(tier.name, "stale", f"the arrays are damaged: {error.message}", found)
    try:
        if (deep or found != seal.weights.files) and _digest(root, tier) != seal.weights.digest:
            return State(tier.name, "damaged", "its weights have changed since they were written", found)
    except FlyweightError as error:
        return State(tier.name, "damaged", error.message, found)
    renewed = Seal(tier.name, Proof(seal.source.digest, source), Proof(seal.weights.digest, found), seal.ungated)
    if renewed != seal:
        _renew(root, tier, renewed)
    return State(tier.name, "ready", tier.about, found, seal.ungated)


def _digest(root: Path, tier: Tier) -> str:
    with open_tier(root, tier) as checkpoint:
        return content_digest(checkpoint)


def _renew(root: Path, tier: Tier, seal: Seal) -> None:
    """The same digests with the stamps of today, if the directory can be written and nobody is at work in it."""
    with suppress(OSError), locked(root, None) as alone:
        if alone and weights_stamps(root, tier) == seal.weights.files:
            write_seal(root, tier, seal)
