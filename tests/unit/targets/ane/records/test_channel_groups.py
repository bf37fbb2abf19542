"""Records of output-channel groups: 14 words, a set for each engine, and bytes that are none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.foundation.cursor import Cursor
from flyweight.foundation.errors import (
    ArgumentError,
    FlyweightError,
    LimitError,
    MalformedError,
    TruncatedError,
    UnsupportedError,
)
from flyweight.sources import MemorySource
from flyweight.targets.ane.records.channel_groups import (
    SLOTS,
    ChannelGroup,
    ChannelTable,
    channel_table,
    channels_per_group,
)
from flyweight.targets.ane.records.dma_streams import DMA_STREAMS


def cursor(data: bytes) -> Cursor:
    return Cursor(MemorySource(data))


def test_fourteen_words_ten_of_them_minus_one() -> None:
    words = ChannelGroup(128, 8).words()
    assert len(words) == 14
    assert words[:2] == (128, 8)
    assert words[2:12] == (-1,) * 10
    assert words[12:] == (0, 0)
    assert ChannelGroup(128, 8).to_bytes() == np.array(words, "<i4").tobytes()
    assert len(ChannelGroup(128, 8).to_bytes()) == 56


def test_one_set_for_each_engine_and_channels_in_turn() -> None:
    """64 channels of 32 bytes on the M1's four engines: 16 channels each, in two groups of 8."""
    table, nbytes = channel_table([32] * 64, 4)
    assert [[(group.offset, group.channels) for group in groups] for groups in table.engines] == [
        [(512 * engine, 8), (512 * engine + 256, 8)] for engine in range(4)
    ]
    assert nbytes == 64 * 32
    assert [list(channels) for channels in table.channels_of(1)] == [list(range(1, 33, 4)), list(range(33, 64, 4))]


def test_engines_begin_at_multiples_of_64_and_the_last_group_is_short() -> None:
    table, nbytes = channel_table([10] * 11, 4, 2)
    assert [[(group.offset, group.channels) for group in groups] for groups in table.engines] == [
        [(0, 2), (20, 1)],
        [(64, 2), (84, 1)],
        [(128, 2), (148, 1)],
        [(192, 2)],
    ]
    assert nbytes == 212


def test_more_engines_than_channels() -> None:
    table, nbytes = channel_table([5, 7], 4)
    assert [len(groups) for groups in table.engines] == [1, 1, 0, 0]
    assert nbytes == 64 + 7


@given(st.lists(st.integers(1, 300), max_size=70), st.integers(1, 64), st.integers(1, 9))
def test_every_channel_lies_in_one_group(sizes: list[int], engines: int, per_group: int) -> None:
    table, nbytes = channel_table(sizes, engines, per_group)
    placed: dict[int, tuple[int, int]] = {}
    for engine, groups in enumerate(table.engines):
        for group, channels in zip(groups, table.channels_of(engine), strict=True):
            at = group.offset
            for channel in channels:
                assert channel % engines == engine
                placed[channel] = at, at + sizes[channel]
                at += sizes[channel]
    assert sorted(placed) == list(range(len(sizes)))
    spans = sorted(placed.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert nbytes == max((end for _, end in spans), default=0)
    assert ChannelTable.read(cursor(table.to_bytes())) == table
    assert len(table.to_bytes()) == table.nbytes


def test_the_loader_patches_slots_by_name() -> None:
    group = ChannelGroup(0, 8).relocated(bias=0x1000, palette=0)
    assert group.address("bias") == 0x1000
    assert group.address("palette") == 0
    assert group.address("input") is None
    assert ChannelGroup.read(cursor(group.to_bytes())) == group
    assert group.relocated(bias=0x2000).address("bias") == 0x2000


def test_the_last_slots_are_the_dma_streams() -> None:
    assert len(SLOTS) == 10
    assert SLOTS[-4:] == tuple(DMA_STREAMS)


@pytest.mark.parametrize("slots", [{"zero_point": 1}, {"bias": -1}, {"bias": 2**32 - 1}, {"bias": 2**32}])
def test_addresses_are_32_bit_and_slots_are_known(slots: dict[str, int]) -> None:
    with pytest.raises(ArgumentError):
        ChannelGroup(0, 8).relocated(**slots)


@pytest.mark.parametrize(("elements", "channels"), [(1, 8), (2, 4), (3, 2), (4, 2), (5, 1), (8, 1), (9, 1), (25, 1)])
def test_channels_per_group(elements: int, channels: int) -> None:
    assert channels_per_group(elements) == channels


def test_weights_beyond_32_bits_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="32-bit offsets"):
        channel_table([2**31, 2**31], 1)


@pytest.mark.parametrize(("engines", "per_group"), [(0, 8), (65, 8), (4, 0)])
def test_arguments(engines: int, per_group: int) -> None:
    with pytest.raises(ArgumentError):
        channel_table([4], engines, per_group)


def table_bytes(counts: list[int], *records: list[int]) -> bytes:
    words = [len(counts), *counts, *(word for record in records for word in record)]
    return (np.array(words, np.int64) % 2**32).astype("<u4").tobytes()


RECORD = [0, 8, *[-1] * 10, 0, 0]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TruncatedError),
        (b"\1\0\0", TruncatedError),
        (table_bytes([1], RECORD)[:-1], TruncatedError),
        (table_bytes([1]), TruncatedError),
        (table_bytes([2**32 - 1]), LimitError),
        (table_bytes([2**21, 2**21, 2**21]), LimitError),
        (np.array([65], "<u4").tobytes() + bytes(300), LimitError),
        (np.array([2**32 - 1], "<u4").tobytes(), LimitError),
        (table_bytes([1], [0, 0, *[-1] * 10, 0, 0]), MalformedError),
        (table_bytes([1], [0, 8, *[-1] * 10, 1, 0]), MalformedError),
        (table_bytes([1], [0, 8, *[-1] * 10, 0, 1]), MalformedError),
        (table_bytes([2], RECORD, RECORD), MalformedError),
        (table_bytes([1, 1], [64, *RECORD[1:]], RECORD), MalformedError),
    ],
)
def test_what_is_no_table_is_refused(data: bytes, error: type[FlyweightError]) -> None:
    with pytest.raises(error):
        ChannelTable.read(cursor(data))
