"""The CoreML appendix: an .mlpackage as a zip archive, read under caps and never unpacked by itself.

A member is a plain file below the package: no links, no absolute or climbing paths, no encryption, no two of one name, no bytes
shared with another. Sizes are checked before anything is inflated, and what is inflated may not exceed what was declared.
"""

from __future__ import annotations

import io
import stat
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from flyweight.cursor import Cursor
from flyweight.errors import FlyweightError, LimitError, MalformedError
from flyweight.manifest import Extent
from flyweight.sources import Source

__all__ = ["MAX_MEMBERS", "Member", "check_archive", "check_content", "members", "read_member"]

MAX_MEMBERS = 10_000
MAX_TOTAL_BYTES = 1 << 38
MAX_RATIO = 200
"""An archive of weights hardly shrinks; inflating to more than this many times its bytes is an attack."""
_FREE_BYTES = 1 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END64_LOCATOR = b"PK\x05\x06", b"PK\x06\x07"
_PIECE = 1 << 20

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
    try:
        with zipfile.ZipFile(_open(source, extent)) as archive:
            found = [info for info in archive.infolist() if not info.is_dir()]
            for info in archive.infolist():
                _check_member(info, extent)
            _check_cover(archive.infolist(), archive.start_dir, extent)
            return found
    except FlyweightError:
        raise
    except _ZIP_ERRORS as error:
        raise MalformedError(f"the appendix is no zip archive: {error}", code="E_ZIP", offset=extent.offset) from None


_ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error, KeyError, IndexError,
    OverflowError,
)  # fmt: skip


def _open(source: Source, extent: Extent) -> IO[bytes]:
    return io.BufferedReader(_Window(source, extent), 1 << 16)


def _check_count(source: Source, extent: Extent) -> None:
    """How many members the archive says it has, before zipfile makes an object of each. Comments are not allowed."""
    if extent.nbytes < 22 or bytes(source.read(extent.end - 22, 4)) != _END:
        raise MalformedError("the appendix does not end as a zip archive does", code="E_ZIP", offset=extent.end)
    cursor = Cursor(source, extent.end - 22 + 8)
    here, total = cursor.scalar("u16"), cursor.scalar("u16")
    size = cursor.u32()
    if extent.nbytes >= 42 and bytes(source.read(extent.end - 42, 4)) == _END64_LOCATOR:
        raise MalformedError("the appendix is a zip64 archive, which no package needs", code="E_ZIP", offset=extent.end - 42)
    if here != total or total > MAX_MEMBERS or size > extent.nbytes:
        raise LimitError(
            f"{total} members exceed the limit of {MAX_MEMBERS}, or lie", code="E_ZIP_MEMBERS", offset=extent.end - 22
        )


def _check_member(info: Member, extent: Extent) -> None:
    name, mode = info.orig_filename, info.external_attr >> 16
    steps = name.removesuffix("/").split("/")
    if "\\" in name or "\0" in name or ":" in name or any(step in ("", ".", "..") for step in steps) or len(name) > 1024:
        raise MalformedError(f"the appendix has a member called {name!r}", code="E_ZIP_PATH", offset=extent.offset)
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise MalformedError(f"the member {name!r} is no plain file", code="E_ZIP_LINK", offset=extent.offset)
    if info.flag_bits & 0x2041 or info.compress_type not in _METHODS:
        raise MalformedError(
            f"the member {name!r} is encrypted or of an unknown method", code="E_ZIP_METHOD", offset=extent.offset
        )
    if info.file_size > _FREE_BYTES and info.file_size > MAX_RATIO * max(info.compress_size, 1):
        raise LimitError(
            f"the member {name!r} would grow from {info.compress_size} to {info.file_size} bytes",
            code="E_ZIP_BOMB",
            offset=extent.offset,
        )
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise MalformedError(f"the member {name!r} has two sizes", code="E_ZIP", offset=extent.offset)


def _check_cover(infos: list[Member], end: int, extent: Extent) -> None:
    """No two of one name, none sharing bytes, and together not more than a package may have."""
    folded = {info.filename.casefold() for info in infos}
    if len(folded) != len(infos):
        raise MalformedError("two members of the appendix have one name", code="E_ZIP_PATH", offset=extent.offset)
    if sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
        raise LimitError(f"the appendix would take more than {MAX_TOTAL_BYTES} bytes", code="E_ZIP_BOMB", offset=extent.offset)
    at = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < at:
            raise MalformedError(
                f"the member {info.filename!r} shares bytes with another", code="E_ZIP_OVERLAP", offset=extent.offset
            )
        at = info.header_offset + 30 + info.compress_size
    if at > end:
        raise MalformedError("the members of the appendix run into its table", code="E_ZIP_OVERLAP", offset=extent.offset)


def read_member(source: Source, extent: Extent, member: Member) -> Iterator[bytes]:
    """A member's bytes, in pieces, its CRC checked at the end."""
    try:
        with zipfile.ZipFile(_open(source, extent)) as archive, archive.open(member) as stream:
            left = member.file_size
            while piece := stream.read(min(_PIECE, left + 1)):
                left -= len(piece)
                if left < 0:
                    raise LimitError(f"the member {member.filename!r} is longer than declared", code="E_ZIP_BOMB")
                yield piece
            if left:
                raise MalformedError(f"the member {member.filename!r} is shorter than declared", code="E_ZIP")
    except FlyweightError as error:
        raise error.at(file=source.name) from None
    except _ZIP_ERRORS as error:
        raise MalformedError(f"the member {member.filename!r} is damaged: {error}", code="E_ZIP", file=source.name) from None


def check_archive(source: Source, extent: Extent) -> None:
    """The frame around an archive: ANLX, its length, and what `members` checks. `extent` is the archive itself."""
    cursor = Cursor(source, extent.offset - 12, extent.end)
    magic, length = bytes(cursor.take(4)), cursor.u64()
    if magic == b"ANML":
        raise MalformedError(
            "ANML, a list of paths on the writer's disk, stands for the appendix", code="E_ANML", offset=cursor.offset - 12
        )
    if magic != b"ANLX" or length != extent.nbytes or extent.end != source.size:
        raise MalformedError(
            f"the appendix has {source.size - cursor.offset} bytes to the end of the file; its head, {magic!r}, says {length}",
            code="E_APPENDIX", offset=cursor.offset - 12,
        )  # fmt: skip
    members(source, extent)


def check_content(source: Source, extent: Extent) -> None:
    """Inflate everything once and throw it away."""
    for member in members(source, extent):
        for _ in read_member(source, extent, member):
            pass
