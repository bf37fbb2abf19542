"""Compressed arrays: read in any order, frames that lie are refused, and the package may be missing."""

from __future__ import annotations

import numpy as np
import pytest

import flyweight
from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.sources import MemorySource, zstd
from flyweight.sources.zstd import ZstdSource
from support import GOLDEN

NPY_DIRS = GOLDEN / "npydir"
inflate = zstd._zstd()


def test_compressed_bytes_are_read_in_any_order() -> None:
    raw = np.random.default_rng(3).integers(0, 9, 1_000_000, np.uint8).tobytes()
    source = ZstdSource(MemorySource(inflate.compress(raw)))
    assert source.size == len(raw)
    for at, length in ((0, 10), (999_990, 10), (5, 600_000), (600_005, 100), (7, 0), (0, len(raw)), (300, 300)):
        assert bytes(source.read(at, length)) == raw[at : at + length]
        buffer = bytearray(length)
        source.read_into(at, memoryview(buffer))
        assert buffer == raw[at : at + length]
    with pytest.raises(FlyweightError):
        source.read(len(raw), 1)


def frame(size: int, *blocks: tuple[int, int]) -> bytes:
    """A frame that says it holds `size` bytes, of runs of zeros: (length, whether it is the last)."""
    head = (0xFD2FB528).to_bytes(4, "little") + bytes([0b11000000, 0x58]) + size.to_bytes(8, "little")
    return head + b"".join((length << 3 | 0b010 | last).to_bytes(3, "little") + b"\0" for length, last in blocks)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (frame(1000, (900, 1)), "E_ZSTD"),
        (frame(1000, (1100, 1)), "E_ZSTD"),
        (frame(1000, (500, 0), (600, 1)), "E_ZSTD"),
        (frame(1000, (1000, 0)), "E_TRUNCATED"),
        (frame(1000, (1000, 1)) + b"more", "E_ZSTD"),
        (frame(1000, (1000, 1)) * 2, "E_ZSTD"),
        (frame(1000, (1000, 1))[:-1] + b"", "E_TRUNCATED"),
    ],
)
def test_frames_that_lie_about_their_size(raw: bytes, code: str) -> None:
    source = ZstdSource(MemorySource(raw))
    assert source.size == 1000
    with pytest.raises(MalformedError) as caught:
        source.read(0, 1000)
    assert caught.value.code == code


def test_a_frame_of_the_right_size() -> None:
    assert bytes(ZstdSource(MemorySource(frame(1000, (400, 0), (600, 1)))).read(0, 1000)) == bytes(1000)


def test_without_the_package_one_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "_MODULES", ("flyweight.no_such_module",))
    with pytest.raises(UnsupportedError) as caught:
        flyweight.open(NPY_DIRS / "int8_zst")
    assert caught.value.code == "E_EXTRA"
    assert "flyweight[zstd]" in str(caught.value)
    with pytest.raises(UnsupportedError, match="E_EXTRA"):
        flyweight.verify(NPY_DIRS / "int8_zst")
    with flyweight.open(NPY_DIRS / "int8") as model:
        assert isinstance(model, Checkpoint)
