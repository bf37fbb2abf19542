"""Files below a directory, by names with slashes.

Each component of a name is opened on its own, so a link on the way is not followed. Directories are kept open once used, as
many as a process may reasonably hold; others are opened for each use.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from flyweight.writing.folder import Folder

_KEPT_OPEN = 128
_MAX_DEPTH = 16


class Tree:
    """The files below a folder. Used by several threads at once."""

    def __init__(self, root: Folder) -> None:
        self.root = root
        self._folders: dict[str, Folder] = {"": root}
        self._lock = threading.Lock()

    @contextmanager
    def at(self, name: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """The folder a file is in, made if need be, and its single name there."""
        above, _, last = name.rpartition("/")
        folder = self._folders.get(above)
        if folder is not None:
            yield folder, last
            return
        with self._lock:
            folder = self._folders.get(above) or self._reach(above, make)
            kept = above in self._folders or len(self._folders) < _KEPT_OPEN
            if kept:
                self._folders[above] = folder
        try:
            yield folder, last
        finally:
            if not kept:
                folder.close()

    def _reach(self, path: str, make: bool) -> Folder:
        folder = self.root
        for part in path.split("/"):
            try:
                if make:
                    with suppress(FileExistsError):
                        folder.make_folder(part).close()
                inner = folder.folder(part)
            finally:
                if folder is not self.root:
                    folder.close()
            folder = inner
        return folder

    def sync(self, names: Iterable[str]) -> None:
        """Have the names of these files on disk, and of the folders they are in."""
        for path in sorted(_folders_of(names), reverse=True):
            with self.at(f"{path}/any") as (folder, _):
                folder.sync()
        self.root.sync()

    def close(self) -> None:
        """Close every folder but the root."""
        for path, folder in self._folders.items():
            if path:
                folder.close()
        self._folders = {"": self.root}


def _folders_of(names: Iterable[str]) -> set[str]:
    """Every folder that one of these files is in, at any depth."""
    return {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 1)}


class Content(NamedTuple):
    """What is below a folder: files, links and the like by their names, empty directories with a slash at the end."""

    names: list[str]
    complete: bool
    """Whether that is all: neither too many nor too deep to look at."""


def content(folder: Folder, most: int = 1 << 30) -> Content:
    """What is below a folder, links not followed, up to `most` names."""
    names: list[str] = []
    complete = _collect(folder, "", 1, names, most)
    return Content(sorted(names), complete)


def _collect(folder: Folder, prefix: str, depth: int, names: list[str], most: int) -> bool:
    with os.scandir(folder.descriptor) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry, _ in zip(entries, range(most + 1), strict=False)]
    if prefix and not found:
        names.append(prefix)
    for name, is_folder in found:
        if len(names) >= most:
            return False
        if not is_folder:
            names.append(prefix + name)
        elif depth == _MAX_DEPTH:
            names.append(f"{prefix}{name}/")
            return False
        else:
            with folder.folder(name) as inner:
                if not _collect(inner, f"{prefix}{name}/", depth + 1, names, most):
                    return False
    return True


def remove_listed(parent: Folder, name: str, names: Iterable[str]) -> bool:
    """Remove these files of a directory and the folders that this leaves empty; whether the directory is gone, too."""
    listed = list(names)
    with parent.folder(name) as root:
        tree = Tree(root)
        for file in listed:
            with suppress(FileNotFoundError), tree.at(file) as (folder, last):
                folder.remove(last)
        for path in sorted(_folders_of(listed), key=lambda path: -path.count("/")):
            with suppress(FileNotFoundError), tree.at(path) as (folder, last):
                _remove_empty(folder, last)
        tree.close()
    return _remove_empty(parent, name)


def _remove_empty(parent: Folder, name: str) -> bool:
    try:
        parent.remove_folder(name)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True
