"""Files compressed with zstd, read as their uncompressed bytes.

One frame a file, whose header says how much it holds. Its bytes are inflated in order, a piece at a time; what lies ahead is
reached by inflating up to it, what lies behind by starting over. So memory is bounded by what is asked for, opening costs
nothing, and a lie about the size shows when the last byte is read.

The package is `compression.zstd` of Python 3.14, before that `backports.zstd` (the extra `zstd`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from flyweight.foundation.errors import MalformedError, TruncatedError, UnsupportedError
from flyweight.sources.bundle import Bundle
from flyweight.sources.source import Identity, Source

_PIECE = 1 << 18
_HEAD = 18
"""The longest header a frame can have."""
_MOST = 1 << 15
"""Bytes that one byte can stand for: a block of 4 says 128 KiB of the same."""
_MAX_OPEN = 64
_MODULES = ("compression.zstd", "backports.zstd")


def _zstd() -> Any:
    for name in _MODULES:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise UnsupportedError(
        "reading .zst files needs the package 'backports.zstd'", code="E_EXTRA", hint="pip install 'flyweight[zstd]'"
    )


class ZstdSource(Source):
    def __init__(self, stored: Source) -> None:
        self.name = stored.name
        self._stored, self._zstd = stored, _zstd()
        self._lock = threading.Lock()
        self._restart()
        self.size = self._claimed()

    @property
    def identity(self) -> Identity:
        """That of the compressed file."""
        return self._stored.identity

    def unchanged(self) -> bool:
        return self._stored.unchanged()

    def _claimed(self) -> int:
        head = bytes(self._stored.read(0, min(_HEAD, self._stored.size)))
        try:
            size = self._zstd.get_frame_info(head).decompressed_size
        except self._zstd.ZstdError as error:
            raise self._malformed(str(error)) from None
        if size is None:
            raise self._malformed("its frame does not state its size")
        if size > self._stored.size * _MOST:
            raise self._malformed(f"{self._stored.size} bytes cannot decompress to the {size} they claim")
        return int(size)

    def _malformed(self, message: str) -> MalformedError:
        return MalformedError(f"not a valid zstd file: {message}", code="E_ZSTD", file=self.name)

    def _restart(self) -> None:
        self._inflater = self._zstd.ZstdDecompressor()
        self._taken = self._at = 0  # bytes of the stored file handed over, bytes inflated

    def _inflate(self, most: int) -> bytes:
        """Up to `most` more bytes; none at the end of the frame, which must be the end of the file."""
        while not self._inflater.eof:
            piece = b""
            if self._inflater.needs_input:
                piece = bytes(self._stored.read(self._taken, min(_PIECE, self._stored.size - self._taken)))
                if not piece:
                    raise TruncatedError("the zstd frame is truncated", file=self.name, offset=self._taken)
                self._taken += len(piece)
            try:
                made: bytes = self._inflater.decompress(piece, most)
            except self._zstd.ZstdError as error:
                raise self._malformed(str(error)) from None
            if made:
                self._at += len(made)
                return made
        if self._inflater.unused_data or self._taken < self._stored.size:
            raise self._malformed("there are bytes after its frame")
        return b""

    def _pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """The bytes from `offset`, in pieces."""
        if offset < self._at:
            self._restart()
        while length:
            made = self._inflate(min(_PIECE, offset + length - self._at))
            if not made:
                raise self._malformed(f"it has {self._at} bytes, not {self.size}")
            skipped = max(offset - (self._at - len(made)), 0)
            if skipped < len(made):
                yield made[skipped:]
                length -= len(made) - skipped
                offset += len(made) - skipped
        if self._at == self.size and self._inflate(1):
            raise self._malformed(f"it has more than {self.size} bytes")

    def read(self, offset: int, length: int) -> memoryview:
        self.check_range(offset, length)
        with self._lock:
            return memoryview(b"".join(self._pieces(offset, length)))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.check_range(offset, len(buffer))
        done = 0
        with self._lock:
            for piece in self._pieces(offset, len(buffer)):
                buffer[done : done + len(piece)] = piece
                done += len(piece)


class InflatedBundle(Bundle):
    """A bundle whose members that end in `suffix` are read as what they hold, under the same names."""

    def __init__(self, stored: Bundle, suffix: str) -> None:
        self.stored, self.suffix = stored, suffix
        self.name, self.is_directory = stored.name, stored.is_directory
        self._open: OrderedDict[str, ZstdSource] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Source:
        if not key.endswith(self.suffix):
            self.check_open()
            return self.stored[key]
        with self._lock:
            self.check_open()
            source = self._open.pop(key, None) or ZstdSource(self.stored[key])
            self._open[key] = source
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        return source

    def __contains__(self, key: object) -> bool:
        return key in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def close(self) -> None:
        with self._lock:
            super().close()
            for source in self._open.values():
                source.close()
            self._open.clear()
        self.stored.close()
