"""weight.bin, Core ML's weight file of version 2: blobs, each behind a record that says what it is. All little-endian.

    header     u32 number of blobs · u32 version = 2 · 56 bytes of zero
    record     at a multiple of 64: u32 0xDEADBEEF · u32 element type · u64 bytes · u64 where they begin, which is 64 after the
               record · u64 spare bits of the last byte · 32 bytes of zero
    bytes      values narrower than a byte are one bit stream over all of them, the first in the low bits

A program refers to a blob by the offset of its record. Files made for iOS 17 and before have anything where the spare bits are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flyweight.containers.coreml.element_types import OF_BLOB, ElementType, nbytes
from flyweight.foundation.cursor import SCALARS, Cursor
from flyweight.foundation.errors import CUT_SHORT, MalformedError, TruncatedError, UnsupportedError
from flyweight.foundation.manifest import Extent
from flyweight.sources import Source

ALIGNMENT = 64
VERSION = 2
SENTINEL = 0xDEADBEEF
_RECORD_BYTES = 64


class Blob(NamedTuple):
    kind: ElementType
    extent: Extent
    spare_bits: int


def is_weight_file(source: Source) -> bool:
    """By its first bytes."""
    if source.size < ALIGNMENT + _RECORD_BYTES:
        return False
    cursor = Cursor(source, 4, ALIGNMENT + 4)
    return cursor.u32() == VERSION and not any(cursor.take(56)) and cursor.u32() == SENTINEL


class WeightFile:
    """Blobs by the offsets of their records. `file` is the name of the file in its bundle."""

    def __init__(self, source: Source, file: str) -> None:
        self.source, self.file = source, file
        self._blobs: dict[int, Blob] = {}
        cursor = Cursor(source, 0)
        self.count, version = cursor.u32("the number of blobs"), cursor.u32("the version")
        if version != VERSION:
            raise UnsupportedError(
                f"a weight file of version {version}; known is {VERSION}", code="E_VERSION", file=source.name, offset=4,
                hint="save the package again with coremltools 6 or later",
            )  # fmt: skip

    def blob(self, offset: int) -> Blob:
        """The blob whose record is at `offset`."""
        if offset not in self._blobs:
            self._blobs[offset] = self._read(offset)
        return self._blobs[offset]

    def _read(self, offset: int) -> Blob:
        if offset % ALIGNMENT or not offset:
            raise self._malformed(f"offset {offset} is not a multiple of {ALIGNMENT} behind the header", "E_ALIGNMENT", offset)
        if offset + _RECORD_BYTES > self.source.size:
            raise TruncatedError(
                f"a blob at {offset} is beyond the end of the file at {self.source.size}", code="E_PAST_END",
                file=self.source.name, offset=offset, hint=CUT_SHORT,
            )  # fmt: skip
        cursor = Cursor(self.source, offset)
        sentinel, code = cursor.u32(), cursor.u32()
        size, start, spare = cursor.u64(), cursor.u64(), cursor.u64()
        if sentinel != SENTINEL:
            raise self._malformed(f"no blob begins at {offset}: {sentinel:#010x} is not {SENTINEL:#x}", "E_SENTINEL", offset)
        if code not in OF_BLOB:
            raise UnsupportedError(
                f"a blob of type {code}; known are 1 to {max(OF_BLOB)}", code="E_DTYPE", file=self.source.name, offset=offset
            )
        if start % ALIGNMENT:
            raise self._malformed(f"its bytes begin at {start}, no multiple of {ALIGNMENT}", "E_ALIGNMENT", offset)
        if start < offset + _RECORD_BYTES or start + size > self.source.size:
            raise self._malformed(
                f"its bytes {start}..{start + size} are not within the file, which has {self.source.size}", "E_PAST_END", offset
            )
        kind = OF_BLOB[code]
        return Blob(kind, Extent(self.file, start, size), spare if kind.bits < 8 and spare < 8 else 0)

    def all(self) -> Iterator[tuple[int, Blob]]:
        """Every blob and the offset of its record, one after the other, as many as the header says."""
        offset = ALIGNMENT
        for _ in range(Cursor(self.source, ALIGNMENT).count(self.count, _RECORD_BYTES, 1 << 24, "blobs")):
            blob = self.blob(offset)
            yield offset, blob
            offset = aligned(blob.extent.end)

    def check_overlaps(self) -> None:
        """None of the blobs read so far shares bytes with another, its record included."""
        end, before = 0, 0
        for offset, blob in sorted(self._blobs.items()):
            if offset < end:
                raise self._malformed(f"the blob at {before} reaches over the blob at {offset}", "E_OVERLAP", offset)
            end, before = blob.extent.end, offset

    def _malformed(self, problem: str, code: str, offset: int) -> MalformedError:
        return MalformedError(problem, code=code, file=self.source.name, offset=offset)


# Writing ------------------------------------------------------------------------------------------


def aligned(offset: int) -> int:
    return offset + -offset % ALIGNMENT


class WeightFileLayout:
    """Where blobs go in a new file, in the order they are added."""

    def __init__(self, file: str) -> None:
        self.file, self.nbytes = file, ALIGNMENT
        self._records: list[tuple[int, bytes]] = []

    def add(self, kind: ElementType, count: int) -> tuple[int, Extent]:
        """The offset of its record, and where its bytes are."""
        assert kind.blob is not None
        offset, size = aligned(self.nbytes), nbytes(kind, count)
        start = offset + _RECORD_BYTES
        numbers = (size, start, -count * kind.bits % 8 if kind.bits < 8 else 0)
        record = SCALARS["u32"].pack(SENTINEL) + SCALARS["u32"].pack(kind.blob) + b"".join(map(SCALARS["u64"].pack, numbers))
        self._records.append((offset, record))
        self.nbytes = start + size
        return offset, Extent(self.file, start, size)

    @property
    def chunks(self) -> list[tuple[int, bytes]]:
        """The header and the records."""
        return [(0, SCALARS["u32"].pack(len(self._records)) + SCALARS["u32"].pack(VERSION)), *self._records]
