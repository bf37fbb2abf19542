"""The CoreML appendix of a SQUIZD file: "ANLX", the length, and an .mlpackage as a zip archive (`mlpackage`)."""

from __future__ import annotations

from flyweight.containers.mlpackage import members
from flyweight.foundation.cursor import Cursor
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.manifest import Extent
from flyweight.sources import Source

__all__ = ["HEAD_BYTES", "MAGICS", "check_archive"]

MAGICS, HEAD_BYTES = (b"ANLX", b"ANML"), 12


def check_archive(source: Source, extent: Extent) -> None:
    """The frame around an archive: ANLX, its length, and what `members` checks. `extent` is the archive itself."""
    cursor = Cursor(source, extent.offset - HEAD_BYTES, extent.offset)
    magic, length = bytes(cursor.take(4)), cursor.u64()
    if magic == b"ANML":
        raise MalformedError(
            "the appendix is ANML, a list of paths on the writer's disk, not a package",
            code="E_ANML",
            offset=extent.offset - HEAD_BYTES,
        )
    if magic != b"ANLX" or length != extent.nbytes or extent.end != source.size:
        raise MalformedError(
            f"the appendix has {source.size - cursor.offset} bytes to the end of the file; its header {magic!r} says {length}",
            code="E_APPENDIX", offset=extent.offset - HEAD_BYTES,
        )  # fmt: skip
    members(source, extent)
