"""Whether a tier may be used.

ready        its sentinel holds: built by this user from these arrays, and unchanged since
absent       it is not there
foreign      beside the arrays, and not built by this user: Squish's, or whoever packed the model
unfinished   weights without a sentinel: their builder was stopped
stale        beside the arrays, and the arrays are no longer those it was built from
damaged      its weights are not those that were written
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from flyweight.foundation.errors import FlyweightError
from flyweight.tiers.arrays import Arrays
from flyweight.tiers.digests import Stamps, content, content_digest, files_without_weights, fingerprint, weights_stamps
from flyweight.tiers.opening import open_tier
from flyweight.tiers.sentinel import Sentinel, read_sentinel, write_sentinel
from flyweight.tiers.tier_table import Home, Tier

Standing = Literal["ready", "absent", "foreign", "unfinished", "stale", "damaged"]


class State(NamedTuple):
    tier: str
    standing: Standing
    reason: str
    files: Stamps = {}
    """Its weights when they were looked at."""
    ungated: str = ""
    """What the accuracy gate says against it."""
    in_place: bool = False
    """Whether it lies beside the arrays, and not in the user's cache."""

    @property
    def nbytes(self) -> int:
        return sum(stamp.size for stamp in self.files.values())

    def as_json(self) -> dict[str, Any]:
        where = "beside the arrays" if self.in_place else "cache"
        return {
            "tier": self.tier, "standing": self.standing, "reason": self.reason, "nbytes": self.nbytes, "where": where,
        } | ({"ungated": self.ungated} if self.ungated else {})  # fmt: skip


def state_in(home: Home | None, tier: Tier, arrays: Arrays, *, deep: bool = False) -> State:
    """Look at stamps, and where one has changed, or with `deep`, at every byte. What holds gets the new stamps, in the
    user's cache: nothing is written beside the arrays. Without a home there is nothing."""
    if home is None:
        return State(tier.name, "absent", "not built")
    sentinel, found = read_sentinel(home.path, tier), weights_stamps(home.path, tier)

    def state(standing: Standing, reason: str, ungated: str = "") -> State:
        return State(tier.name, standing, reason, found, ungated, home.in_place)

    if sentinel is None and not os.path.lexists(home.path / tier.sentinel):
        there = bool(found) or os.path.lexists(home.path / tier.place)
        return state("unfinished", f"there is no {tier.sentinel}") if there else state("absent", "not built")
    if sentinel is None:
        standing: Standing = "foreign" if home.in_place else "damaged"
        return state(standing, f"{tier.sentinel} does not say what it was built from")
    if home.in_place and not sentinel.is_own:
        return state("foreign", "was not built by you", sentinel.ungated)
    if not found:
        return state("damaged", f"{tier.place} is missing")
    try:
        if sentinel.source != arrays.digest(deep=deep):
            return state("stale", "built from other arrays")
    except FlyweightError as error:
        return state("stale", f"the arrays are damaged: {error.message}")
    believed = arrays.beside(tier.name) if home.in_place else (sentinel.weights, sentinel.stamps)
    try:
        if deep or believed != (sentinel.weights, fingerprint(found)):
            if tier_digest(home, tier) != sentinel.weights:
                return state("damaged", "its weights have changed since they were written")
            _renew(home, tier, arrays, sentinel, found)
    except (FlyweightError, OSError) as error:
        return state("damaged", error.message if isinstance(error, FlyweightError) else str(error.strerror))
    return state("ready", tier.about, sentinel.ungated)


def tier_digest(home: Home, tier: Tier) -> str:
    """The digest of a tier as it lies there, every byte of it read."""
    with open_tier(home, tier) as checkpoint:
        return content_digest(content(checkpoint), files_without_weights(checkpoint) if tier.is_model else {})


def _renew(home: Home, tier: Tier, arrays: Arrays, sentinel: Sentinel, found: Stamps) -> None:
    """The same digests with the stamps of today, unless the weights were replaced meanwhile."""
    if weights_stamps(home.path, tier) != found:
        return
    if home.in_place:
        arrays.remember_beside(tier.name, sentinel.weights, found)
        return
    with suppress(OSError, FlyweightError):  # a cache that cannot be written: it is read again next time
        write_sentinel(home, tier, sentinel._replace(stamps=fingerprint(found)))
