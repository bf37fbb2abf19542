"""A Core ML package (.mlpackage) as one zip archive: read within limits, unpacked only on request, written from a directory.

A member is a plain file below the package: no links, no absolute or climbing paths, no encryption, no two of one name, no bytes
shared with another. Sizes are checked before anything is inflated, and what is inflated may not exceed what was declared. An
archive made here has the same bytes for the same files, whenever and wherever it is made.
"""

from __future__ import annotations

import io
import os
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from flyweight.foundation.cursor import Cursor
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_ARCHIVE_BYTES
from flyweight.foundation.manifest import Extent
from flyweight.sources import Bundle, JoinedSource, MemorySource, Piece, Source

NAME = "model.mlpackage.zip"
"""The side file of a model that is a Core ML model of the same weights."""
PART = "coreml"
"""What it is called where a part of a file is asked for."""
MANIFEST = "Manifest.json"
MAX_MEMBERS = 10_000
MAX_TOTAL_BYTES = 1 << 38
_MAX_INFLATED = 1 << 28
"""Of a member that is read whole, because it is deflated."""
MAX_RATIO = 200
"""An archive of weights hardly shrinks; inflating to more than this many times its bytes is an attack."""
_FREE_BYTES = 1 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END_BYTES, _END64_LOCATOR = b"PK\x05\x06", 22, b"PK\x06\x07"
_PIECE = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)

Member = zipfile.ZipInfo


class _Window(io.RawIOBase):
    """A run of bytes of a source as a file to seek in: zipfile reads only what it needs."""

    def __init__(self, source: Source, extent: Extent) -> None:
        self.source, self.extent, self.at = source, extent, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.extent.nbytes}[whence]
        if base + offset < 0:
            raise OSError("a place before the archive")
        self.at = base + offset
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        count = max(min(len(buffer), self.extent.nbytes - self.at), 0)
        buffer[:count] = self.source.read(self.extent.offset + self.at, count) if count else b""
        self.at += count
        return count


def members(source: Source, extent: Extent) -> list[Member]:
    """The files of the archive at `extent`, proven harmless to list and to inflate one by one."""
    _check_count(source, extent)
    with _opened(source, extent) as archive:
        for info in archive.infolist():
            _check_member(info, extent)
        _check_cover(archive.infolist(), archive.start_dir, extent)
        return [info for info in archive.infolist() if not info.is_dir()]


_ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error, KeyError, IndexError,
    OverflowError,
)  # fmt: skip


@contextmanager
def _opened(source: Source, extent: Extent) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(io.BufferedReader(_Window(source, extent), 1 << 16)) as archive:
            yield archive
    except _ZIP_ERRORS as error:
        raise MalformedError(
            f"the package is not a valid zip archive: {error}", code="E_ZIP", file=source.name, offset=extent.offset
        ) from None


def _check_count(source: Source, extent: Extent) -> None:
    """How many members the archive has, before zipfile makes an object of each. Comments are not allowed.

    zipfile reads the table to its end whatever number the record says, so the table is counted.
    """
    if extent.nbytes < _END_BYTES or bytes(source.read(extent.end - _END_BYTES, 4)) != _END:
        raise MalformedError("the package does not end with the end record of a zip archive", code="E_ZIP", offset=extent.end)
    cursor = Cursor(source, extent.end - _END_BYTES + 8, extent.end)
    here, total = cursor.scalar("u16"), cursor.scalar("u16")
    size, _, comment = cursor.u32(), cursor.u32(), cursor.scalar("u16")
    if comment:
        raise MalformedError("the archive of the package has a comment", code="E_ZIP", offset=extent.end - _END_BYTES)
    locator = extent.end - _END_BYTES - 20
    if locator >= extent.offset and bytes(source.read(locator, 4)) == _END64_LOCATOR:
        raise MalformedError("the package is a zip64 archive, which no package needs", code="E_ZIP", offset=locator)
    if total > MAX_MEMBERS:
        raise LimitError(
            f"{total} members exceed the limit of {MAX_MEMBERS}", code="E_ZIP_MEMBERS", offset=extent.end - _END_BYTES
        )
    if size > extent.nbytes - _END_BYTES:
        raise MalformedError(
            f"the central directory has {size} bytes, but the archive has {extent.nbytes}",
            code="E_ZIP",
            offset=extent.end - _END_BYTES,
        )
    counted = _count(Cursor(source, extent.end - _END_BYTES - size, extent.end - _END_BYTES))
    if not here == total == counted:
        raise MalformedError(
            f"the archive has {counted} members but states {total}", code="E_ZIP_MEMBERS", offset=extent.end - _END_BYTES
        )


def _count(table: Cursor) -> int:
    """The members of a table, at most one more than there may be."""
    counted = 0
    while table.remaining and counted <= MAX_MEMBERS:
        table.take(28, "a member of the package")
        table.take(12 + sum(table.scalars("u16", 3)), "a member of the package")
        counted += 1
    return counted


def _check_member(info: Member, extent: Extent) -> None:
    name, mode = info.orig_filename, info.external_attr >> 16
    if not (_is_plain(name) and _is_plain(info.filename)):  # they differ where a field beside the name changes it
        raise MalformedError(f"the package has a member called {name!r}", code="E_ZIP_PATH", offset=extent.offset)
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise MalformedError(f"the member {name!r} is not a regular file", code="E_ZIP_LINK", offset=extent.offset)
    if info.flag_bits & 0x2041 or info.compress_type not in _METHODS:
        raise MalformedError(
            f"the member {name!r} is encrypted or has an unknown compression method", code="E_ZIP_METHOD", offset=extent.offset
        )
    if info.file_size > _FREE_BYTES and info.file_size > MAX_RATIO * max(info.compress_size, 1):
        raise LimitError(
            f"the member {name!r} would grow from {info.compress_size} to {info.file_size} bytes",
            code="E_ZIP_BOMB",
            offset=extent.offset,
        )
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise MalformedError(f"the member {name!r} has two different sizes", code="E_ZIP", offset=extent.offset)


def _is_plain(name: str) -> bool:
    steps = name.removesuffix("/").split("/")
    return not (any(c in name for c in "\\\0:") or any(step in ("", ".", "..") for step in steps)) and len(name) <= 1024


def _check_cover(infos: list[Member], end: int, extent: Extent) -> None:
    """No two of one name, none sharing bytes, and together not more than a package may have."""
    folded = {unicodedata.normalize("NFC", info.filename).casefold() for info in infos}
    if len(folded) != len(infos):
        raise MalformedError("two members of the package have the same name", code="E_ZIP_PATH", offset=extent.offset)
    # With "/" below all else, what lies below a name directly follows it.
    for name, after in pairwise(sorted(name.replace("/", "\0") for name in folded)):
        if after.startswith(f"{name}\0"):
            raise MalformedError(f"the member {name!r} is also a directory", code="E_ZIP_PATH", offset=extent.offset)
    limit = min(MAX_TOTAL_BYTES, _FREE_BYTES + MAX_RATIO * extent.nbytes)
    if sum(info.file_size for info in infos) > limit:
        raise LimitError(f"the package would take more than {limit} bytes", code="E_ZIP_BOMB", offset=extent.offset)
    at = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < at:
            raise MalformedError(
                f"the member {info.filename!r} shares bytes with another", code="E_ZIP_OVERLAP", offset=extent.offset
            )
        at = info.header_offset + 30 + info.compress_size
    if at > end:
        raise MalformedError(
            "the members of the package overlap its central directory", code="E_ZIP_OVERLAP", offset=extent.offset
        )


def read_member(source: Source, extent: Extent, member: Member) -> Iterator[bytes]:
    """A member's bytes, in pieces, its CRC checked at the end."""
    with _opened(source, extent) as archive:
        yield from _inflated(archive, member)


def _inflated(archive: zipfile.ZipFile, member: Member) -> Iterator[bytes]:
    with archive.open(member) as stream:
        left = member.file_size
        while piece := stream.read(_PIECE):
            left -= len(piece)
            yield piece
    if left:
        raise zipfile.BadZipFile(f"{left} bytes of {member.filename!r} are missing")


def check_content(source: Source, extent: Extent) -> None:
    """Inflate everything once and throw it away."""
    listed = members(source, extent)
    with _opened(source, extent) as archive:
        for member in listed:
            for _ in _inflated(archive, member):
                pass


class PackageBundle(Bundle):
    """The files of an archived package as a bundle: stored members where they lie, deflated ones inflated when asked for."""

    is_directory = True

    def __init__(self, source: Source, extent: Extent) -> None:
        self.name = source.name
        self._source, self._extent = source, extent
        listed = members(source, extent)
        root = min((m.filename.removesuffix(MANIFEST) for m in listed if _is_manifest(m)), key=len, default="")
        self._members = {m.filename.removeprefix(root): m for m in listed if m.filename.startswith(root)}
        self._opened: dict[str, Source] = {}

    def __getitem__(self, key: str) -> Source:
        self.check_open()
        if key not in self._opened:
            self._opened[key] = self._open(key, self._members[key])
        return self._opened[key]

    def _open(self, key: str, member: Member) -> Source:
        name = f"{self.name}, {key}"
        if member.compress_type == zipfile.ZIP_STORED:
            header = Cursor(self._source, self._extent.offset + member.header_offset + 26, self._extent.end)
            lengths = sum(header.scalars("u16", 2))
            start = header.skip(lengths + member.file_size, "a member of the package") + lengths
            return JoinedSource(name, [Piece(self._source, start, member.file_size)])
        if member.file_size > _MAX_INFLATED:
            raise LimitError(f"{member.filename!r} inflates to {member.file_size} bytes; the limit is {_MAX_INFLATED}")
        return MemorySource(b"".join(read_member(self._source, self._extent, member)), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _is_manifest(member: Member) -> bool:
    return member.filename.split("/")[-1] == MANIFEST


# Making one ---------------------------------------------------------------------------------------


def read_package(path: Path) -> bytes:
    """The archive of an .mlpackage: of a directory made here, of a file taken as it is. Refused if a reader would refuse it."""
    try:
        data = _archived(path) if path.is_dir() else _whole(path)
        listed = members(MemorySource(data, str(path)), Extent(str(path), 0, len(data)))
    except FlyweightError as error:
        raise error.at(file=str(path)) from None
    if not any(map(_is_manifest, listed)):
        raise UnsupportedError(f"not a Core ML package: there is no {MANIFEST}", code="E_PACKAGE", file=str(path))
    return data


def _whole(path: Path) -> bytes:
    require_size(path.stat().st_size)
    return path.read_bytes()


def _archived(root: Path) -> bytes:
    names = _files(root)
    require_size(sum(os.path.getsize(root / name) for name in names))
    return archive({name: (root / name).read_bytes() for name in names})


def archive(files: Mapping[str, bytes | bytearray]) -> bytes:
    """The archive of a package's files. Stored, not deflated: weights hardly shrink, and a reader can map them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as made:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system, member.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            made.writestr(member, bytes(files[name]))
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


def require_size(nbytes: int) -> None:
    if nbytes > MAX_ARCHIVE_BYTES:
        raise LimitError(f"the package has {nbytes} bytes; the limit is {MAX_ARCHIVE_BYTES}", code="E_PACKAGE")
