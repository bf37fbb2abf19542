"""Sees every change a process makes to a file system, and says where it was.

An audit hook is told of every open for writing, creation, renaming and removal. Names relative to a directory descriptor are
resolved through /proc; for `os.open`, whose event does not carry the descriptor, by standing in front of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["Watch", "snapshot"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# For each event, the places of (path, descriptor of its directory) among its arguments.
_EVENTS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "shutil.rmtree": ((0, 1),),
}
_HARMLESS = ("/dev/null", "/dev/tty", "/dev/shm/sem.", "/proc/self/")


class Watch:
    """Notes every changed place while it is `on`. There can be one in a process, since audit hooks cannot be removed."""

    def __init__(self) -> None:
        self.on = False
        self.changed: list[str] = []
        self._local = threading.local()
        self._open = os.open
        sys.addaudithook(self._heard)
        os.open = self._opened  # type: ignore[assignment]

    def begin(self) -> None:
        self.changed.clear()
        self.on = True

    def end(self) -> list[str]:
        self.on = False
        return list(self.changed)

    def outside(self, allowed: Iterable[Path | str]) -> list[str]:
        """Changes that are not below any of these places."""
        roots = [os.path.realpath(root) for root in allowed]
        return [
            place
            for place in self.changed
            if not place.startswith(_HARMLESS) and not any(place == root or place.startswith(root + os.sep) for root in roots)
        ]

    def _opened(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if self.on and flags & _WRITING:
            self._note(path, dir_fd)
        self._local.noted = True
        try:
            return self._open(path, flags, mode, dir_fd=dir_fd)
        finally:
            self._local.noted = False

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, _mode, flags = arguments
            if (
                isinstance(flags, int)
                and flags & _WRITING
                and not isinstance(path, int)
                and not getattr(self._local, "noted", False)
            ):
                self._note(path, None)
        elif event in _EVENTS:
            for path_at, descriptor_at in _EVENTS[event]:
                descriptor = arguments[descriptor_at] if descriptor_at is not None else None
                self._note(arguments[path_at], descriptor if isinstance(descriptor, int) and descriptor >= 0 else None)

    def _note(self, path: Any, descriptor: int | None) -> None:
        """Where a name really is: its directory resolved, the name itself not followed, as creating and removing do not."""
        if isinstance(path, int):
            self.changed.append(os.readlink(f"/proc/self/fd/{path}"))
            return
        name = os.fsdecode(path)
        if not os.path.isabs(name):
            try:
                home = os.readlink(f"/proc/self/fd/{descriptor}") if descriptor is not None else os.getcwd()
            except OSError:
                home = "/unknown"
            name = os.path.join(home, name)
        folder, last = os.path.split(name)
        place = os.path.join(os.path.realpath(folder), last)
        # An open for writing follows a link in the last place: that is where it writes.
        self.changed.append(os.path.realpath(place) if os.path.islink(place) else place)


def snapshot(root: Path | str) -> dict[str, tuple[int, ...]]:
    """Every name below a directory, with what a write to it would change."""
    found: dict[str, tuple[int, ...]] = {}
    todo = [str(root)]
    while todo:
        try:
            items = list(os.scandir(todo.pop()))
        except OSError:
            continue
        for item in items:
            status = item.stat(follow_symlinks=False)
            found[item.path] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
            if item.is_dir(follow_symlinks=False):
                found[item.path] = (status.st_ino, status.st_mode)
                todo.append(item.path)
    return found
