"""Files that a command writes once: complete under their name, or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from flyweight.foundation.errors import OutputError
from flyweight.writing.folder import Folder, move_exclusive
from flyweight.writing.own import temporary_name


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file; on disk when this returns. OutputError if there is anything of its name."""
    path = Path(os.path.abspath(path))
    with Folder(path.parent) as folder:
        if folder.status(path.name) is not None:  # before any work
            raise _taken(path)
        name = temporary_name(path.name)
        descriptor = folder.create(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            move_exclusive(folder, name, folder, path.name)
        except BaseException as error:
            with suppress(FileNotFoundError):
                folder.remove(name)
            if isinstance(error, FileExistsError):
                raise _taken(path) from None
            raise
        folder.sync()


def _taken(path: Path) -> OutputError:
    return OutputError("already exists", code="E_EXISTS", file=str(path), hint="remove it, or choose another name")
