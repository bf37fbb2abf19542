"""What a source is: bytes with random access."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from flyweight.foundation.errors import TruncatedError
from flyweight.sources.opened import Opened

_PIECE = 1 << 20


class Identity(NamedTuple):
    """Which bytes a source holds, two that are equal are of the same bytes. A file's is known without reading it."""

    size: int
    stamp: str
    """What changes with the content: the times and the inode of a file, else the digest."""

    @property
    def is_digest(self) -> bool:
        return "." not in self.stamp

    @classmethod
    def of_file(cls, status: os.stat_result) -> Identity:
        """The second time, of the last change of anything, cannot be set back by a program."""
        return cls(status.st_size, f"{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_ino}")


class Source(Opened, ABC):
    """Bytes with random access, until it is closed. `name` says where they are."""

    size: int

    @property
    def identity(self) -> Identity:
        """Which bytes these were when the source was opened; by their digest where nothing tells without reading them."""
        return Identity(self.size, self.digest())

    def unchanged(self) -> bool:
        """Whether they still are, as far as can be told without reading them."""
        self.check_open()
        return True

    @abstractmethod
    def read(self, offset: int, length: int) -> memoryview:
        """Exactly `length` bytes from `offset`, without a copy where the source can; else TruncatedError."""

    @abstractmethod
    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Safe against a file that shrinks meanwhile, unlike a mapped view."""

    def digest(self, offset: int = 0, length: int | None = None, *, after_piece: Callable[[], object] = lambda: None) -> str:
        """The BLAKE3 of `length` bytes from `offset`, or of all, read a piece at a time."""
        from blake3 import blake3

        end = self.size if length is None else offset + length
        self.check_range(offset, end - offset)
        hasher, buffer = blake3(), memoryview(bytearray(min(_PIECE, end - offset)))
        while offset < end:
            piece = buffer[: min(_PIECE, end - offset)]
            self.read_into(offset, piece)
            hasher.update(piece)
            offset += len(piece)
            after_piece()
        return hasher.hexdigest()

    def in_memory(self, offset: int) -> bool:
        """Whether the byte at `offset` can be had without waiting, as far as the machine tells."""
        self.check_open()
        return True

    def expect(self, offset: int, length: int) -> None:
        """A hint that these bytes will be read soon; a source that can fetches them, or begins to."""
        self.check_open()

    def check_range(self, offset: int, length: int) -> None:
        """Whoever reads calls this first: ClosedError, or TruncatedError for bytes that are not there."""
        if self._closed:  # here, because a header is a hundred thousand reads
            self.check_open()
        if offset < 0 or length < 0 or offset + length > self.size:
            raise TruncatedError(
                f"bytes {offset}..{offset + length} are outside the file of {self.size} bytes",
                file=self.name,
                offset=offset,
            )
