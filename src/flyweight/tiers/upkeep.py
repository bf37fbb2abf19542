"""Listing, checking and removing tiers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flyweight.foundation.errors import MalformedError, OutputError
from flyweight.tiers import keeping, store
from flyweight.tiers.arrays import Arrays, indexed
from flyweight.tiers.state import State, state_in
from flyweight.tiers.tier_table import TIERS, Home, Tier, has_tiers, require_tiers, tier_named
from flyweight.writing import Folder, Tree

Told = Callable[[str, int], object]
"""told(path, bytes) of each thing that is, or would be, removed."""


def state_of(path: Path | str, tier: str, *, in_place: bool = False, deep: bool = False) -> State:
    """Whether a tier of a model may be used: the one in the user's cache, or the one beside the arrays."""
    arrays, chosen = Arrays(require_tiers(path)), tier_named(tier)
    return state_in(Home(arrays.root, arrays.root) if in_place else _own(arrays), chosen, arrays, deep=deep)


def _own(arrays: Arrays) -> Home | None:
    try:
        return arrays.home()
    except MalformedError:  # of damaged arrays there is no tier
        return None


# Of models ----------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """A model and its tiers, in the user's cache and beside the arrays."""

    path: Path
    states: tuple[State, ...]
    unfinished: int
    """Bytes of builds that were stopped, which building again would go on with."""

    def as_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "tiers": [s.as_json() for s in self.states], "unfinished_bytes": self.unfinished}


def models_below(paths: Iterable[Path]) -> Iterator[Path]:
    """The npy-dirs among these paths and the directories directly in them."""
    for path in paths:
        if has_tiers(path):
            yield path
        elif path.is_dir():
            yield from (entry for entry in sorted(path.iterdir()) if entry.is_dir() and has_tiers(entry))
        else:
            raise FileNotFoundError(2, "no such directory", str(path))


def listing(path: Path | str, *, deep: bool = False) -> Listing:
    """The tiers of a model; with `deep` every byte of them and of the arrays is read."""
    arrays = Arrays(require_tiers(path))
    own, beside = _own(arrays), Home(arrays.root, arrays.root)
    states = []
    for tier in TIERS:
        both = [state_in(home, tier, arrays, deep=deep) for home in (own, beside)]
        states += [state for state in both if state.standing != "absent"] or both[:1]
    stopped = sum(item.nbytes for item in keeping.leftovers() if item.key == arrays.key)
    return Listing(arrays.root, tuple(states), stopped + sum(keeping.allocated(item) for item in _staged(arrays.root, TIERS)))


def _staged(root: Path, tiers: Iterable[Tier]) -> list[Path]:
    """What looks like a build beside the arrays that was stopped."""
    prefixes = tuple(f".{tier.place}.partial" for tier in tiers)
    return sorted(root / name for name in os.listdir(root) if name.startswith(prefixes))


def prune(
    path: Path | str, *, tiers: Iterable[str], only_unusable: bool = False, foreign: bool = False, dry_run: bool = False,
    told: Told = lambda _what, _nbytes: None,
) -> int:  # fmt: skip
    """Remove tiers and unfinished builds of a model; returns the bytes freed. The arrays are never touched.

    Sentinels go first: what is left of a removal that was killed is weights without one. Beside the arrays only what this user
    built goes, unless what is `foreign` is asked for: builds that were stopped there cannot be told from it.
    """
    chosen = [tier_named(name) for name in tiers]
    arrays = Arrays(require_tiers(path))
    with store.locked(arrays.key, None) as alone:
        if not alone:
            raise OutputError("another process is building or removing its tiers", code="E_LOCKED", file=str(arrays.root))
        freed = _prune_beside(arrays, chosen, only_unusable, foreign, dry_run, told)
    own = _own(arrays)
    unusable = {t for t in chosen if state_in(own, t, arrays).standing in ("unfinished", "stale", "damaged")}
    wanted = [
        item for item in keeping.kept()
        if own and item.digest == own.path.name and item.tier in (unusable if only_unusable else chosen)
    ]  # fmt: skip
    stopped = [item for item in keeping.leftovers() if item.key == arrays.key]
    return freed + _remove([*wanted, *stopped], dry_run, told)


def _prune_beside(arrays: Arrays, tiers: Iterable[Tier], only_unusable: bool, foreign: bool, dry_run: bool, told: Told) -> int:
    freed, home = 0, Home(arrays.root, arrays.root)
    kept = {"absent"} | ({"ready"} if only_unusable else set()) | (set() if foreign else {"foreign"})
    for tier in tiers:
        state = state_in(home, tier, arrays)
        ours = foreign or state.standing != "unfinished" or tier.name in arrays.begun
        places = [tier.sentinel, tier.place] if state.standing not in kept and ours else []
        for place in places + ([item.name for item in _staged(arrays.root, [tier])] if foreign else []):
            target = arrays.root / place
            if os.path.lexists(target):
                nbytes = keeping.allocated(target)
                told(str(target), nbytes)
                freed += nbytes
                if not dry_run:
                    _remove_beside(arrays.root, place)
    return freed


def _remove_beside(root: Path, place: str) -> None:
    """Remove a name of the layout; what is a link is removed, and not what it leads to."""
    if "/" in place and os.path.islink(os.path.dirname(root / place)):
        return
    with suppress(FileNotFoundError), Folder(root) as top, closing(Tree(top)) as tree, tree.at(place) as (folder, name):
        folder.remove_tree(name)


# Of the user's cache --------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A tier in the user's cache, or a build that was stopped."""

    item: keeping.Kept | keeping.Leftover
    path: str
    """A model that it belongs to; if none is there any more, the one it was built for."""
    standing: str
    reason: str

    @property
    def tier(self) -> str:
        return self.item.tier.name if isinstance(self.item, keeping.Kept) else ""

    @property
    def is_usable(self) -> bool:
        return self.standing == "ready"

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.path, "tier": self.tier, "standing": self.standing, "reason": self.reason, "nbytes": self.item.nbytes,
            "last_used": self.item.used,
        }  # fmt: skip


def entries(*, deep: bool = False, forget: bool = False) -> list[Entry]:
    """What is in the user's cache, the longest unused first. With `forget` models that are gone are forgotten."""
    models = indexed(forget=forget)
    found = [_entry(item, models.get(item.digest, []), deep) for item in keeping.kept()]
    return found + [Entry(item, "", "unfinished", "its build was interrupted") for item in keeping.leftovers()]


def _entry(item: keeping.Kept, models: list[str], deep: bool) -> Entry:
    for path in models:
        if has_tiers(Path(path)) and (home := store.home_of(Path(path), item.digest)):
            arrays = Arrays(home.root)
            if arrays.recorded == item.digest:
                state = state_in(home, item.tier, arrays, deep=deep)
                return Entry(item, path, state.standing, state.reason)
    return Entry(item, item.path, "orphaned", "its model no longer exists")


def prune_cache(
    *, tiers: Iterable[str], only_unusable: bool = False, unused_for: float = 0.0, dry_run: bool = False,
    told: Told = lambda _what, _nbytes: None,
) -> int:  # fmt: skip
    """Remove tiers from the user's cache: all, or only those that no longer hold, or that were not used for so many seconds."""
    chosen, latest = {tier_named(name).name for name in tiers}, time.time() - unused_for
    wanted = [
        entry.item
        for entry in entries(forget=not dry_run)
        if (not entry.tier or entry.tier in chosen)
        and not (only_unusable and entry.is_usable)
        and (not unused_for or entry.item.used < latest)
    ]
    return _remove(wanted, dry_run, told)


def _remove(items: Iterable[keeping.Kept | keeping.Leftover], dry_run: bool, told: Told) -> int:
    """Remove what nobody uses; returns the bytes freed."""
    freed = 0
    for item in items:
        if dry_run or item.remove():
            told(str(item.place), item.nbytes)
            freed += item.nbytes
    return freed
