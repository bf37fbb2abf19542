"""The user's own cache and state directories, and the key that signs this user's work.

    $XDG_CACHE_HOME/flyweight      what can be made again           [~/.cache/flyweight]
    $XDG_STATE_HOME/flyweight      a key, reports of faults         [~/.local/state/flyweight]

`signature` is a keyed BLAKE3. Whoever can write into a model directory, or has packed one, cannot make it: what carries it was
written by this user, and may be resumed, trusted or removed. It proves nothing to anyone else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from flyweight.foundation.errors import OutputError
from flyweight.writing.folder import Folder, move_exclusive

_NAME, _KEY, _KEY_BYTES = "flyweight", "key", 32
_WRITABLE_BY_OTHERS = 0o022
_SIGNED = 16
"""Digits of a signature in a name."""


def own_cache() -> Path:
    """Where the user's cache is; nothing is made."""
    return _home("XDG_CACHE_HOME", ".cache") / _NAME


def own_state() -> Path:
    """Where the user's key and reports are; nothing is made."""
    return _home("XDG_STATE_HOME", ".local/state") / _NAME


def _home(variable: str, default: str) -> Path:
    named = os.environ.get(variable, "")
    return Path(named) if os.path.isabs(named) else Path.home() / default


def own_folder(path: Path) -> Folder:
    """A directory below the user's own, made if need be; OutputError if it is someone else's, or others can write there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Folder(path.parent) as parent:
        with suppress(FileExistsError):
            parent.make_folder(path.name, 0o700).close()
        found = parent.folder(path.name)
    if os.fstat(found.descriptor).st_mode & _WRITABLE_BY_OTHERS:
        found.close()
        raise OutputError("other users can write here", code="E_FOREIGN", file=str(path), hint=f"chmod go-w {path}")
    return found


def temporary_name(name: str) -> str:
    """What a file is called until it is complete: nobody else could make that name, so `is_temporary` knows it again."""
    fresh = f".{name}.{os.urandom(8).hex()}"
    return f"{fresh}-{signature(os.fsencode(fresh))[:_SIGNED]}"


def is_temporary(name: str) -> bool:
    fresh, _, signed = name.rpartition("-")
    return len(signed) == _SIGNED and signature(os.fsencode(fresh))[:_SIGNED] == signed


def signature(content: bytes) -> str:
    """What nobody but this user can put under this content."""
    from blake3 import blake3

    return blake3(content, key=_key()).hexdigest()


@cache
def _key() -> bytes:
    """The user's key; for this process alone where none can be kept."""
    try:
        with own_folder(own_state()) as folder:
            return _kept_key(folder)
    except (OSError, OutputError):
        return os.urandom(_KEY_BYTES)


def _kept_key(folder: Folder) -> bytes:
    if folder.status(_KEY) is None:
        fresh = folder.fresh_name(".")
        descriptor = folder.create(fresh, 0o600)
        try:
            os.write(descriptor, os.urandom(_KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            move_exclusive(folder, fresh, folder, _KEY)
        except FileExistsError:  # made by another process meanwhile
            folder.remove(fresh)
        folder.sync()
    descriptor = folder.reopen(_KEY, os.O_RDONLY)
    try:
        kept = os.read(descriptor, _KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(kept) != _KEY_BYTES:
        raise OutputError("is not a valid key", code="E_FOREIGN", file=str(folder.path / _KEY), hint="remove it")
    return kept
