"""The shape of a hostile file: what it holds, and the error it must end in.

A corpus is `HOSTILE: dict[str, Case]` in a module `tests/fuzz/hostile_<format>.py`; the shared
tests run every case of every corpus. Cases are built by code, so that each says what is wrong
with it, and large ones cost nothing to store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Case", "Special"]

Special = Callable[[Path], None]
"""Puts at a path what bytes cannot express: a symbolic link, a FIFO."""


@dataclass(frozen=True)
class Case:
    """A bundle on disk and the stable code of the error that opening it must raise.

    `files` maps relative names to bytes. A case that is not a directory has exactly one file
    (others may lie beside it, as split parts do: `opened` says which one is opened).
    """

    files: Mapping[str, bytes]
    code: str
    is_directory: bool = False
    special: Mapping[str, Special] = field(default_factory=dict)
    opened: str = ""
    exit_code: int = 3
    """3 malformed or hostile, 4 well-formed but unsupported, 1 a delta of another base."""
    base: str = ""
    """The model beside it that it is opened on, if it is a delta, or that it is given to a conversion of."""
    is_statistics: bool = False
    """Whether it is statistics of that model."""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.files.values()))

    def write(self, root: Path) -> Path:
        """Create the bundle below `root`; return the path to open."""
        model = root / "model"
        model.mkdir(parents=True)
        for name, data in self.files.items():
            path = model / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for name, make in self.special.items():
            (model / name).parent.mkdir(parents=True, exist_ok=True)
            make(model / name)
        if self.is_directory:
            return model
        return model / (self.opened or next(iter(self.files)))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to(target: str) -> Special:
    return lambda path: path.symlink_to(target)
