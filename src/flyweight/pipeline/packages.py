"""A Core ML package as one archive: the same bytes for the same files, whenever and wherever it is made."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

from flyweight.containers.squizd import appendix
from flyweight.errors import FlyweightError, LimitError, UnsupportedError
from flyweight.limits import MAX_ARCHIVE_BYTES
from flyweight.manifest import Extent
from flyweight.sources import MemorySource

__all__ = ["read_package"]

MANIFEST = "Manifest.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def read_package(path: Path) -> bytes:
    """The archive of an .mlpackage: of a directory made here, of a file taken as it is. Refused if a reader would refuse it."""
    try:
        data = _archived(path) if path.is_dir() else _whole(path)
        members = appendix.members(MemorySource(data, str(path)), Extent(str(path), 0, len(data)))
    except FlyweightError as error:
        raise error.at(file=str(path)) from None
    if not any(member.filename.split("/")[-1] == MANIFEST for member in members):
        raise UnsupportedError(f"a Core ML package has a {MANIFEST}, and this has none", code="E_PACKAGE", file=str(path))
    return data


def _whole(path: Path) -> bytes:
    _check(path.stat().st_size)
    return path.read_bytes()


def _archived(root: Path) -> bytes:
    """Stored, not deflated: weights hardly shrink, and a reader can map them."""
    files = sorted(_files(root))
    _check(sum(os.path.getsize(root / name) for name in files))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in files:
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system, member.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            archive.writestr(member, (root / name).read_bytes())
    return buffer.getvalue()


def _files(root: Path) -> list[str]:
    found = []
    for folder, subfolders, files in os.walk(root):
        for name in (*subfolders, *files):
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UnsupportedError(f"'{name}' is neither a file nor a directory", code="E_PACKAGE")
        found += [os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/") for name in files]
    return found


def _check(nbytes: int) -> None:
    if nbytes > MAX_ARCHIVE_BYTES:
        raise LimitError(f"{nbytes} bytes of a package exceed the limit of {MAX_ARCHIVE_BYTES}", code="E_PACKAGE")
