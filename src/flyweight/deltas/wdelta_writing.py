"""The bytes of a .wdelta file: records one after the other, then the header that describes them, before them, and the checksum.

What a header says is known when the last record is: records are written behind a place that is large enough for any header, and
moved up to it when it is there. They are read then anyhow, for the checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from struct import pack
from typing import Any, NamedTuple

from blake3 import blake3

from flyweight.deltas.kind import Array, Record
from flyweight.deltas.recognition import MAGIC
from flyweight.deltas.wdelta_file import ARRAY_TYPES, HEADER
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.limits import MAX_JSON_BYTES

_PIECE = 4 << 20
Write = Callable[[int, memoryview], None]
Read = Callable[[int, int], bytes]


class Written(NamedTuple):
    """A record in the file: where its array is."""

    field: str
    dtype: str
    offset: int
    nbytes: int


class RecordWriter:
    """Writes records from `start` on. What is behind `at` counts for nothing, so that it can be set back."""

    def __init__(self, write: Write, start: int) -> None:
        self._write, self.start, self.at = write, start, start

    def put(self, tensor: str, record: Record) -> Written:
        """An array as its pieces come; its size, which stands before it, is written last."""
        kind = ARRAY_TYPES[record.dtype]
        begin = self.at
        first = self.at = begin + len(_record_head(tensor, record.field, record.dtype, 0))
        for piece in record.pieces:
            self._put(piece.astype(kind, copy=False))
        nbytes = self.at - first
        self._write(begin, memoryview(_record_head(tensor, record.field, record.dtype, nbytes)))
        return Written(record.field, record.dtype, first, nbytes)

    def _put(self, piece: Array) -> None:
        if piece.nbytes:
            self._write(self.at, memoryview(piece.tobytes()))
            self.at += piece.nbytes

    def put_bytes(self, field: str, content: bytes) -> Written:
        """A record of bytes that belongs to no tensor."""
        import numpy as np

        return self.put("", Record(field, "uint8", [np.frombuffer(content, np.uint8)]))

    def finish(self, header: dict[str, Any], read: Read) -> int:
        """Write the header, the records behind it and the checksum; the size of the file."""
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
        head = MAGIC + pack("<II", 1, len(text)) + text
        if len(text) > MAX_JSON_BYTES or len(head) > self.start:
            raise UnsupportedError(f"the header would take {len(text)} bytes", code="E_HEADER_SIZE")
        self.put_bytes(HEADER, blake3(text).digest())
        seal, moved = hashlib.sha256(head), len(head)
        self._write(0, memoryview(head))
        for at in range(self.start, self.at, _PIECE):
            piece = read(at, min(_PIECE, self.at - at))
            seal.update(piece)
            self._write(moved, memoryview(piece))
            moved += len(piece)
        self._write(moved, memoryview(seal.digest()))
        return moved + seal.digest_size


def _record_head(tensor: str, field: str, dtype: str, nbytes: int) -> bytes:
    texts = b"".join(pack("<I", len(text.encode())) + text.encode() for text in (tensor, field, dtype))
    return texts + pack("<IQQ", 1, nbytes // ARRAY_TYPES[dtype].itemsize, nbytes)
