"""The user's cache of tiers: adding, listing, removing, and its size limit.

Together the tiers take no more than FLYWEIGHT_CACHE_SIZE (`40G`): by default 32 GiB, or a quarter of the file system if that is
less. What was not used for longest goes first, before a build and after it. A sentinel's mtime is when its tier was last used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flyweight.foundation.errors import ResourceError, UnsupportedError
from flyweight.foundation.limits import parse_size
from flyweight.foundation.manifest import is_digest
from flyweight.tiers.digests import weights_stamps
from flyweight.tiers.store import (
    ABOUT,
    BUILDING,
    LOCK,
    TIERS_FOLDER,
    about,
    digests_kept,
    flocked,
    lock_file,
    locked,
    made,
    own,
    placing,
)
from flyweight.tiers.tier_table import TIERS, Tier
from flyweight.writing import Folder, Tree, move, own_cache

_VARIABLE = "FLYWEIGHT_CACHE_SIZE"
_MOST, _SHARE = 32 << 30, 4


# What is kept -----------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A tier in the user's cache."""

    digest: str
    tier: Tier
    nbytes: int
    used: float
    """When it was last run, or built, in seconds since 1970."""
    path: str
    """The model it was built for."""

    @property
    def place(self) -> Path:
        return own_cache() / TIERS_FOLDER / self.digest / self.tier.place

    def remove(self) -> bool:
        """False if some process runs from it."""
        with placing() as entries, made(TIERS_FOLDER, self.digest) as folder:
            with flocked(folder, LOCK, None) as alone:
                if not alone:
                    return False
                _clear(folder, self.tier)
            if set(folder.names()) <= {ABOUT, LOCK}:
                entries.remove_tree(self.digest)
        return True


class Leftover(NamedTuple):
    """A build that was stopped."""

    key: str
    nbytes: int
    used: float

    @property
    def place(self) -> Path:
        return own_cache() / TIERS_FOLDER / BUILDING / self.key

    def remove(self) -> bool:
        """False if it is under way."""
        with locked(self.key, None) as alone:
            if alone:
                with made(TIERS_FOLDER, BUILDING) as folder:
                    folder.remove_tree(self.key)
            return alone


def kept() -> list[Kept]:
    """Every tier in the user's cache, the longest unused first."""
    found = []
    for digest in digests_kept():
        home = own_cache() / TIERS_FOLDER / digest
        path = about(home).get("path", "")
        for tier in TIERS:
            weights = weights_stamps(home, tier)
            if not weights and not os.path.lexists(home / tier.sentinel):
                continue
            used = 0.0
            for named in (tier.place, tier.sentinel):  # one without a sentinel was never used
                with suppress(FileNotFoundError):
                    used = os.lstat(home / named).st_mtime
            found.append(Kept(digest, tier, sum(stamp.size for stamp in weights.values()), used, str(path)))
    return sorted(found, key=lambda item: item.used)


def leftovers() -> list[Leftover]:
    """Builds that were stopped, or are under way."""
    if (folder := own(TIERS_FOLDER, BUILDING)) is None:
        return []
    found = []
    with folder:
        for key in filter(is_digest, folder.names()):
            with suppress(FileNotFoundError):  # just ended
                if os.listdir(folder.path / key):
                    found.append(Leftover(key, allocated(folder.path / key), os.stat(folder.path / key).st_mtime))
    return found


def allocated(path: Path) -> int:
    """Bytes a file or folder takes on disk; a link takes none."""
    if path.is_symlink() or not path.exists():
        return 0
    return sum(allocated(item) for item in path.iterdir()) if path.is_dir() else path.stat().st_blocks * 512


def adopt(work: Folder, digest: str, tier: Tier, said: Mapping[str, Any], vouch: Callable[[Path], object]) -> None:
    """Move the tier that was built in `work` to the tiers of these arrays: its weights, then, by `vouch`, its sentinel."""
    with placing() as entries, made(TIERS_FOLDER, digest) as folder:
        os.close(lock_file(folder, LOCK))
        folder.replace(ABOUT, json.dumps(said).encode(), 0o600)
        _clear(folder, tier)
        move(work, tier.place, folder, tier.place)
        folder.sync()
        entries.sync()
        vouch(folder.path)


def _clear(folder: Folder, tier: Tier) -> None:
    """Remove a tier of an entry: its sentinel first, so that what is left of a removal that was killed is not run."""
    with suppress(FileNotFoundError), closing(Tree(folder)) as tree, tree.at(tier.sentinel) as (inner, name):
        inner.remove_tree(name)
    folder.remove_tree(tier.place)


# The bound --------------------------------------------------------------------------------------


def cache_limit() -> int:
    """How many bytes the tiers in the user's cache may take together."""
    said = os.environ.get(_VARIABLE, "").strip()
    if said:
        try:
            return 0 if said == "0" else parse_size(said, _VARIABLE)
        except ValueError as error:
            raise UnsupportedError(str(error), code="E_CACHE_SIZE") from None
    there = os.statvfs(next(path for path in (own_cache(), *own_cache().parents) if path.exists()))
    return min(_MOST, there.f_blocks * there.f_frsize // _SHARE)


def make_room(nbytes: int, place: Path) -> None:
    """Have room for what takes so many bytes in this place: remove what was not used for longest.

    ResourceError if that does not suffice; nothing is removed for what is larger than the bound.
    """
    limit = cache_limit()
    found: list[Kept | Leftover] = [*kept(), *leftovers()] if nbytes <= limit else []
    others = [item for item in found if item.place != place]
    total = nbytes + sum(item.nbytes for item in others)
    for item in sorted(others, key=lambda item: item.used):
        if total <= limit:
            return
        if item.remove():
            total -= item.nbytes
    if total > limit:
        in_use = f", of which {(total - nbytes) >> 20} MiB are in use" if total > nbytes else ""
        raise ResourceError(
            f"the tier needs {nbytes >> 20} MiB, but all tiers in your cache may take {limit >> 20} MiB together{in_use}",
            code="E_CACHE_SIZE", hint=f"set {_VARIABLE} higher, or `flyweight cache build --in-place`",
        )  # fmt: skip
