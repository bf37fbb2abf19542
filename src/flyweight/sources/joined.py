"""Runs of bytes that lie apart, read as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from flyweight.sources.source import Source


class Piece(NamedTuple):
    source: Source
    offset: int
    nbytes: int


class JoinedSource(Source):
    """Pieces of other sources, one behind the other; it closes none of them."""

    def __init__(self, name: str, pieces: Sequence[Piece]) -> None:
        self.name = name
        self._pieces = pieces
        self._ends = list(accumulate(piece.nbytes for piece in pieces))
        self.size = self._ends[-1] if pieces else 0

    def unchanged(self) -> bool:
        return super().unchanged() and all(piece.source.unchanged() for piece in self._pieces)

    def read(self, offset: int, length: int) -> memoryview:
        """Copied where it is of several pieces."""
        self.check_range(offset, length)
        runs = list(self._runs(offset, length))
        if len(runs) == 1:
            ((source, start, nbytes),) = runs
            return source.read(start, nbytes)
        buffer = memoryview(bytearray(length))
        self.read_into(offset, buffer)
        return buffer.toreadonly()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.check_range(offset, len(buffer))
        at = 0
        for source, start, nbytes in self._runs(offset, len(buffer)):
            source.read_into(start, buffer[at : at + nbytes])
            at += nbytes

    def _runs(self, offset: int, length: int) -> Iterator[Piece]:
        """What of the pieces lies in a range."""
        end = offset + length
        for index in range(bisect_right(self._ends, offset), len(self._pieces)):
            piece, stop = self._pieces[index], self._ends[index]
            start = stop - piece.nbytes
            if start >= end:
                return
            first = max(offset, start)
            yield Piece(piece.source, piece.offset + first - start, min(end, stop) - first)
