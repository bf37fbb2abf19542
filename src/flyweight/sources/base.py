"""The contract of a source."""

from __future__ import annotations

from abc import ABC, abstractmethod

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

    def digest(self, offset: int = 0, length: int | None = None) -> str:
        """The BLAKE3 of `length` bytes from `offset`, or of all, read a piece at a time."""
        from blake3 import blake3

        end = self.size if length is None else offset + length
        hasher, buffer = blake3(), memoryview(bytearray(max(min(_PIECE, end - offset), 0)))
        while offset < end:
            piece = buffer[: min(_PIECE, end - offset)]
            self.read_into(offset, piece)
            hasher.update(piece)
            offset += len(piece)
        return hasher.hexdigest()

    def in_memory(self, offset: int) -> bool:
        """Whether the byte at `offset` can be had without waiting, as far as the machine tells."""
        return True

    def expect(self, offset: int, length: int) -> None:  # noqa: B027  a hint may be ignored
        """A hint that these bytes will be read soon; a source that can fetches them, or begins to."""

    def check_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise TruncatedError(
                f"bytes {offset}..{offset + length} lie outside the {self.size} bytes there are",
                file=self.name,
                offset=offset,
            )
