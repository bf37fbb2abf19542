"""Pieces of sources read as one, at every place and length."""

from __future__ import annotations

import pytest

from flyweight.foundation.errors import TruncatedError
from flyweight.sources import ClosedError, JoinedSource, MemorySource, Piece

FIRST, SECOND = MemorySource(bytes(range(16)), "a"), MemorySource(bytes(range(100, 116)), "b")
PIECES = [Piece(FIRST, 3, 4), Piece(SECOND, 0, 0), Piece(SECOND, 1, 2), Piece(FIRST, 0, 3)]
WHOLE = bytes([3, 4, 5, 6, 101, 102, 0, 1, 2])


def test_every_range_is_what_it_would_be_of_one_file() -> None:
    joined = JoinedSource("joined", PIECES)
    assert joined.size == len(WHOLE)
    for start in range(len(WHOLE) + 1):
        for stop in range(start, len(WHOLE) + 1):
            buffer = bytearray(stop - start)
            joined.read_into(start, memoryview(buffer))
            assert bytes(joined.read(start, stop - start)) == bytes(buffer) == WHOLE[start:stop]
    assert joined.unchanged()


def test_nothing_is_behind_its_end() -> None:
    joined = JoinedSource("joined", PIECES)
    with pytest.raises(TruncatedError):
        joined.read(8, 2)
    assert JoinedSource("empty", []).size == 0


def test_a_closed_one_reads_no_more_but_its_pieces_do() -> None:
    joined = JoinedSource("joined", PIECES)
    joined.close()
    with pytest.raises(ClosedError):
        joined.read(0, 1)
    assert bytes(FIRST.read(0, 1)) == b"\0"
