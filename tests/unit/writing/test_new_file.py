"""A file that is written once is complete or absent, and never takes the place of another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flyweight.foundation.errors import OutputError
from flyweight.writing import write_new


def test_pieces_become_one_file(tmp_path: Path) -> None:
    write_new(tmp_path / "new", [b"ab", memoryview(b"cd"), b""])
    assert (tmp_path / "new").read_bytes() == b"abcd"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(OutputError) as failure:
        write_new(tmp_path / "taken", [b"other"])
    assert failure.value.code == "E_EXISTS"
    assert (tmp_path / "taken").read_bytes() == b"mine"


def test_a_name_taken_meanwhile_stays(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        (tmp_path / "new").write_bytes(b"mine")
        yield b"other"

    with pytest.raises(OutputError, match="already exists"):
        write_new(tmp_path / "new", pieces())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("new", b"mine")]


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_new(tmp_path / "new", pieces())
    assert list(tmp_path.iterdir()) == []
