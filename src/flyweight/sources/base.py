"""The contract of a source."""

from __future__ import annotations

from abc import ABC, abstractmethod

from blake3 import blake3

from flyweight.errors import TruncatedError

__all__ = ["Source"]

_PIECE = 1 << 20


class Source(ABC):
    """Bytes with random access. `name` is for messages."""

    name: str
    size: int

    @abstractmethod
    def read(self, offset: int, length: int) -> memoryview:
        """Exactly `length` bytes from `offset`, without a copy where the source can; else TruncatedError."""

    @abstractmethod
    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Safe against a file that shrinks meanwhile, unlike a mapped view."""

    def check_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise TruncatedError(
                f"bytes {offset}..{offset + length} lie outside the {self.size} bytes there are",
                file=self.name,
                offset=offset,
            )

    def digest(self) -> str:
        """The BLAKE3 of all bytes, read a piece at a time."""
        hasher, buffer = blake3(max_threads=blake3.AUTO), memoryview(bytearray(min(_PIECE, max(self.size, 1))))
        for done in range(0, self.size, _PIECE):
            piece = buffer[: min(_PIECE, self.size - done)]
            self.read_into(done, piece)
            hasher.update(piece)
        return hasher.hexdigest()
