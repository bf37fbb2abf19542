"""Paths and locks of the user's cache of tiers, which nobody else can write.

    $XDG_CACHE_HOME/flyweight/
        sources/<BLAKE3 of the real path of a model>.json     what its arrays were last found to be (`arrays`)
        tiers/lock                                            held while an entry is put in place or removed
        tiers/<digest of the arrays>/                         a home: tiers with their sentinels, and
            about.json                                        the model it was built for, and the bytes of its arrays
            lock                                              shared by whoever runs from it; what is in use is not removed
        tiers/building/<BLAKE3 of the real path>/             a build under way, or one that was stopped
        tiers/building/<BLAKE3 of the real path>.lock         held by whoever builds

`keeping` has what is done with what is in it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flyweight.foundation.errors import OutputError
from flyweight.foundation.manifest import is_digest
from flyweight.tiers.tier_table import Home, Tier
from flyweight.writing import Folder, own_cache, own_folder

TIERS_FOLDER, BUILDING, ABOUT, LOCK = "tiers", "building", "about.json", "lock"


# Places -----------------------------------------------------------------------------------------


def own(*names: str, make: bool = False) -> Folder | None:
    """A folder of the user's cache; None if it is not there and not to be made.

    OutputError if it is someone else's, or others can write into it or into one that it lies in.
    """
    try:
        path = own_cache()
    except RuntimeError as error:  # a user without a home
        raise OutputError(str(error), code="E_FOREIGN", hint="set XDG_CACHE_HOME") from None
    folder: Folder | None = None
    for name in ("", *names):
        path = path / name
        if folder is not None:
            folder.close()
        if not make and not os.path.lexists(path):
            return None
        folder = own_folder(path)
    return folder


def made(*names: str) -> Folder:
    folder = own(*names, make=True)
    assert folder is not None
    return folder


def home_of(root: Path, digest: str) -> Home | None:
    """Where the tiers of these arrays are, if there are any."""
    if (folder := own(TIERS_FOLDER, digest)) is None:
        return None
    with folder:
        return Home(root, folder.path)


@contextmanager
def work_folder(key: str) -> Iterator[Folder]:
    """Where tiers of one model are built, before they are put in their home; it is gone when nothing is left in it."""
    try:
        with made(TIERS_FOLDER, BUILDING, key) as folder:
            yield folder
    finally:
        with suppress(OSError), made(TIERS_FOLDER, BUILDING) as building:
            building.remove_folder(key)


# Locks ------------------------------------------------------------------------------------------


def lock_file(folder: Folder, name: str) -> int:
    while True:
        with suppress(FileNotFoundError):
            return folder.reopen(name)
        with suppress(FileExistsError):  # made by another process meanwhile
            return folder.create(name, 0o600)


@contextmanager
def flocked(folder: Folder, name: str, waiting: Callable[[], object] | None) -> Iterator[bool]:
    descriptor = lock_file(folder, name)
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


@contextmanager
def locked(key: str, waiting: Callable[[], object] | None) -> Iterator[bool]:
    """Alone with the builds of one model. Without `waiting` there is no wait: False if someone else is at them."""
    with made(TIERS_FOLDER, BUILDING) as folder, flocked(folder, f"{key}.lock", waiting) as alone:
        yield alone


@contextmanager
def placing() -> Iterator[Folder]:
    """Alone with the entries: putting one in place and removing one take moments."""
    with made(TIERS_FOLDER) as folder, flocked(folder, LOCK, lambda: None):
        yield folder


def held(home: Home) -> int:
    """A descriptor that keeps an entry from being removed until it is closed; -1 where it cannot be had."""
    with suppress(OSError):
        descriptor = os.open(home.path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return -1


def touch(home: Home, tier: Tier) -> None:
    """Note that a tier was used."""
    with suppress(OSError):
        os.utime(home.path / tier.sentinel, follow_symlinks=False)


# Entries ----------------------------------------------------------------------------------------


def about(home: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        said = json.loads((home / ABOUT).read_bytes())
        if type(said) is dict:
            return said
    return {}


def digests_kept() -> list[str]:
    if (folder := own(TIERS_FOLDER)) is None:
        return []
    with folder:
        return [name for name in folder.names() if is_digest(name)]


def may_hold(nbytes: int) -> bool:
    """Whether there is an entry of arrays that take as many bytes: only then is their digest worth taking."""
    return any(about(own_cache() / TIERS_FOLDER / digest).get("nbytes") == nbytes for digest in digests_kept())
