"""A directory of sources, or one file as a bundle of one."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path

from flyweight.foundation.errors import LimitError, MalformedError, OutputError, UnsupportedError
from flyweight.foundation.limits import MAX_SHARDS
from flyweight.sources.file import FileSource
from flyweight.sources.memory import MemorySource
from flyweight.sources.opened import Opened
from flyweight.sources.source import Identity, Source

_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_DEPTH = 8
_MAX_OPEN = 128


class Bundle(Opened, Mapping[str, Source]):
    """Relative names to sources. `is_directory` tells a one-file directory from a lone file.

    Closing closes the members; the names can still be listed.
    """

    is_directory: bool

    @property
    def single(self) -> str | None:
        """The name of the only member of a lone file."""
        return None if self.is_directory else next(iter(self))

    def siblings(self) -> Bundle:
        """A lone file's bundle widened to the files beside it (for split files); a directory is its own."""
        self.check_open()
        return self


class MemoryBundle(Bundle):
    """Files in memory, for tests and for bytes that never touch a disk."""

    remedy = "holds views of bytes; make it again from them"

    def __init__(self, files: Mapping[str, bytes], name: str = "<memory>", *, is_directory: bool = True) -> None:
        self.name = name
        self.is_directory = is_directory
        self._sources = {key: MemorySource(data, key) for key, data in files.items()}

    def __getitem__(self, key: str) -> Source:
        self.check_open()
        return self._sources[key]

    def close(self) -> None:
        super().close()
        for source in self._sources.values():
            source.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


class PathBundle(Bundle):
    """Files below a root, opened when first asked for, at most 128 kept open.

    A symbolic link is followed only within the root or, for a snapshot of the Hugging Face
    cache, into the same repository's `blobs`. Hidden directories are not part of a model.
    Names are listed without entering a directory through a link, so a member that is no link
    itself lies inside; only one that is gets resolved.
    """

    def __init__(self, root: Path, names: list[str], *, name: str, is_directory: bool) -> None:
        self.root = root
        self.name = name
        self.is_directory = is_directory
        self._names = dict.fromkeys(names)
        self._prefix = os.path.join(root, "")
        self._open: OrderedDict[str, FileSource] = OrderedDict()
        self._identities: dict[str, Identity] = {}
        self._siblings: PathBundle | None = None
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Source:
        if key not in self._names:
            raise KeyError(key)
        with self._lock:
            self.check_open()
            source = self._open.pop(key, None) or self._reopen(key)
            self._open[key] = source
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)  # closes when nobody reads from it any more
        return source

    def _reopen(self, key: str) -> FileSource:
        """Open a member; one that was open before must still be the same file."""
        source = self._inside(self._prefix + key) if self.is_directory else FileSource(self.root / key, self.name)
        if self._identities.setdefault(key, source.identity) != source.identity:
            raise OutputError("the file changed while the model was open", code="E_SOURCE_CHANGED", file=source.name)
        return source

    def _inside(self, path: str) -> FileSource:
        try:
            return FileSource(path, follow=False)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        _check_link(self.root, path)
        return FileSource(path)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def siblings(self) -> Bundle:
        with self._lock:
            self.check_open()
            if self.is_directory:
                return self
            if self._siblings is None:
                names = sorted(item.name for item in os.scandir(self.root) if not item.is_dir())
                self._siblings = PathBundle(self.root, names, name=str(self.root), is_directory=True)
            return self._siblings

    def close(self) -> None:
        with self._lock:  # someone may be opening a member
            super().close()
            if self._siblings is not None:
                self._siblings.close()
            for source in self._open.values():
                source.close()
            self._open.clear()


def _check_link(root: Path, path: str) -> None:
    """Refuse a member whose real place is outside the model."""
    real, home = os.path.realpath(path), os.path.realpath(root)
    homes = [home]
    if os.path.basename(os.path.dirname(home)) == "snapshots":
        homes.append(os.path.join(os.path.dirname(os.path.dirname(home)), "blobs"))
    if not any(real.startswith(place + os.sep) for place in homes):
        raise MalformedError(
            "a symbolic link leads out of the model directory", code="E_LINK", file=path, hint=f"it resolves to {real}"
        )


def _directory(root: Path) -> PathBundle:
    names: list[str] = []
    for folder, subfolders, files in os.walk(root, onerror=_raise):
        relative = os.path.relpath(folder, root)
        depth = 0 if relative == "." else relative.count(os.sep) + 1
        subfolders[:] = sorted(d for d in subfolders if not d.startswith(".")) if depth < _MAX_DEPTH else []
        names += [name if depth == 0 else f"{relative}/{name}".replace(os.sep, "/") for name in sorted(files)]
        if len(names) > 10 * MAX_SHARDS:
            raise LimitError(f"more than {10 * MAX_SHARDS} files in a model directory", file=str(root))
    return PathBundle(root, names, name=str(root), is_directory=True)


def _raise(error: OSError) -> None:
    """A directory that cannot be listed must not look like an empty one."""
    raise error


def local_path(place: Path | str) -> Path:
    """A place as a path of this machine. A URL is refused here, for a path would have one slash where it has two."""
    if isinstance(place, str) and _URL.match(place):
        raise UnsupportedError(
            "remote sources are not supported yet", code="E_REMOTE", file=place, hint="download the file and pass its path"
        )
    return Path(place)


def open_bundle(path: Path | str) -> Bundle:
    """The bundle at a path. A missing path is an ordinary FileNotFoundError."""
    path = local_path(path)
    if path.is_dir():
        return _directory(path)
    if not path.exists():
        if str(path) == "-":
            raise UnsupportedError(
                "a model cannot be read from standard input", code="E_STREAM", file="-",
                hint="save it as a file and give its path",
            )  # fmt: skip
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not path.is_file():  # a socket cannot even be opened
        raise MalformedError("neither a file nor a directory", code="E_NOT_A_FILE", file=str(path))
    return PathBundle(path.parent, [path.name], name=str(path), is_directory=False)
