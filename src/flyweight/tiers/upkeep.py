"""Keeping tiers: what there is, whether it still holds, and removing it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flyweight.errors import OutputError
from flyweight.tiers.state import State, locked, state_of
from flyweight.tiers.table import TIERS, Tier, has_tiers, home_of_tiers, tier_named

__all__ = ["Listing", "listing", "models_below", "prune"]


class Listing(NamedTuple):
    """A directory and its tiers."""

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
    """The tiers of a directory; with `deep` every byte of them and of the arrays is read."""
    root = home_of_tiers(path)
    states = tuple(state_of(root, tier, deep=deep) for tier in TIERS)
    return Listing(root, states, sum(_nbytes(_partial(root, tier)) for tier in TIERS))


def _partial(root: Path, tier: Tier) -> Path:
    return root / f".{tier.place}.partial"


def _nbytes(path: Path) -> int:
    """Bytes a file or folder takes on disk."""
    if path.is_symlink() or not path.exists():
        return 0
    return sum(_nbytes(item) for item in path.iterdir()) if path.is_dir() else path.stat().st_blocks * 512


def prune(
    path: Path | str, *, tiers: Iterable[str], only_unusable: bool = False, foreign: bool = False, dry_run: bool = False,
    told: Callable[[str, int], object] = lambda _what, _nbytes: None,
) -> int:  # fmt: skip
    """Remove tiers and unfinished builds; returns the bytes freed. The arrays are never touched.

    Sentinels go first: what is left of a removal that was killed is weights without one. What was not built here stays,
    unless `foreign` tiers are asked for.
    """
    root, chosen, freed = home_of_tiers(path), {tier_named(name).name for name in tiers}, 0
    with locked(root, None) as alone:
        if not alone:
            raise OutputError("another process is at work on its tiers", code="E_LOCKED", file=str(root))
        for tier in TIERS:
            if tier.name not in chosen:
                continue
            state = state_of(root, tier)
            kept = (
                state.standing == "absent"
                or (state.standing == "ready" and only_unusable)
                or (state.standing == "foreign" and not foreign)
            )
            for place, wanted in (
                (root / tier.sentinel, not kept),
                (root / tier.place, not kept),
                (_partial(root, tier), True),
            ):
                if wanted and os.path.lexists(place):
                    nbytes = _nbytes(place)
                    told(str(place), nbytes)
                    freed += nbytes
                    if not dry_run:
                        _remove(place)
    return freed


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
