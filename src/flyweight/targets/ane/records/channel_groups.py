"""Records of output-channel groups: where the coefficients of a few channels lie, and ten addresses for the loader to fill in.

    word    0       byte offset into the weights
            1       channels
            2 … 11  addresses, −1 until the loader patches them
            12, 13  reserved flags, 0

There is a set of records for each engine. Channel c is computed by engine c mod the number of engines.

The guide gives the words, not their width: 32 bits, little-endian, 56 bytes a record is our reading. So are the order of the
slots, the count of four coefficient buffers (what is left of ten), and the table around the records: the number of engines, the
number of records of each, then all records. Weights of an engine begin at a multiple of 64 bytes, as the tiles of compiled
programs do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyweight.foundation.cursor import Cursor
from flyweight.foundation.errors import ArgumentError, UnsupportedError
from flyweight.targets.ane.records.engine_numbers import Array

SLOTS = (
    "input", "output", "coefficients_0", "coefficients_1", "coefficients_2", "coefficients_3",
    "bias", "post_scale", "palette", "activation",
)  # fmt: skip
"""Ours in number (of coefficient buffers) and order; the last four are streams of `dma_streams`."""
UNRELOCATED = -1
WORDS = 4 + len(SLOTS)
RECORD_BYTES = 4 * WORDS
ALIGNMENT = 64
MOST_ENGINES = 64
"""Of the largest target."""
_MOST_RECORDS = 1 << 22
_OBJECT_NBYTES = 512  # what a record takes in memory
_WORD = 1 << 32
_CODE = "E_CHANNEL_GROUP"


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    offset: int
    channels: int
    slots: tuple[int, ...] = (UNRELOCATED,) * len(SLOTS)

    def relocated(self, **addresses: int) -> ChannelGroup:
        """The record with addresses in some of its slots."""
        unknown = [name for name in addresses if name not in SLOTS]
        if unknown or not all(0 <= address < _WORD - 1 for address in addresses.values()):
            raise ArgumentError(f"slots are {', '.join(SLOTS)}, addresses 32-bit numbers below 2^32 − 1", code=_CODE)
        return replace(self, slots=tuple(addresses.get(name, old) for name, old in zip(SLOTS, self.slots, strict=True)))

    def address(self, slot: str) -> int | None:
        """What the loader put into a slot; None before it did."""
        value = self.slots[SLOTS.index(slot)]
        return None if value == UNRELOCATED else value

    def words(self) -> tuple[int, ...]:
        return self.offset, self.channels, *self.slots, 0, 0

    def to_bytes(self) -> bytes:
        return (np.array(self.words(), np.int64) % _WORD).astype("<u4").tobytes()

    @classmethod
    def read(cls, cursor: Cursor) -> ChannelGroup:
        offset, channels, *rest = cursor.scalars("u32", WORDS, "a channel group")
        slots, flags = rest[: len(SLOTS)], rest[len(SLOTS) :]
        if any(flags) or not channels:
            raise cursor.malformed("a channel group has reserved flags, or no channels", _CODE)
        return cls(offset, channels, tuple(UNRELOCATED if slot == _WORD - 1 else slot for slot in slots))


@dataclass(frozen=True, slots=True)
class ChannelTable:
    """The records of every engine."""

    engines: tuple[tuple[ChannelGroup, ...], ...]

    def __iter__(self) -> Iterator[ChannelGroup]:
        return (group for groups in self.engines for group in groups)

    def __len__(self) -> int:
        return sum(map(len, self.engines))

    @property
    def nbytes(self) -> int:
        return table_nbytes(len(self.engines), len(self))

    def channels_of(self, engine: int) -> Iterator[range]:
        """The output channels of each of an engine's groups."""
        first, step = engine, len(self.engines)
        for group in self.engines[engine]:
            yield range(first, first + group.channels * step, step)
            first += group.channels * step

    def to_bytes(self) -> bytes:
        counts = np.array([len(self.engines), *map(len, self.engines)], "<u4").tobytes()
        return counts + b"".join(group.to_bytes() for group in self)

    @classmethod
    def read(cls, cursor: Cursor) -> ChannelTable:
        """MalformedError for records whose offsets do not ascend."""
        engines = cursor.count(cursor.u32("the number of engines"), 4, MOST_ENGINES, "engines")
        counts = cursor.scalars("u32", engines, "the numbers of channel groups")
        cursor.count(sum(counts), RECORD_BYTES, _MOST_RECORDS, "channel groups")
        cursor.spend(sum(counts) * _OBJECT_NBYTES, "channel groups")
        table = cls(tuple(tuple(ChannelGroup.read(cursor) for _ in range(count)) for count in counts))
        offsets = [group.offset for group in table]
        if any(later <= offset for offset, later in itertools.pairwise(offsets)):
            raise cursor.malformed("the offsets of channel groups do not ascend", _CODE)
        return table


def table_nbytes(engines: int, groups: int) -> int:
    return 4 + 4 * engines + RECORD_BYTES * groups


def channels_per_group(kernel_elements: int = 1) -> int:
    """The channels of a group for a kernel of width × height × depth: the greatest power of two not above 8 ÷ elements, or 1.

    The guide caps it further by bytes per element; which cap holds for which type it does not say.
    """
    if kernel_elements < 1:
        raise ArgumentError("a kernel has at least one element", code=_CODE)
    return 1 << (max(8 // kernel_elements, 1).bit_length() - 1)


def channel_table(channel_nbytes: Sequence[int] | Array, engines: int, per_group: int = 8) -> tuple[ChannelTable, int]:
    """The records of weights whose channels take so many bytes each, and the bytes of all weights as the records place them."""
    if not 1 <= engines <= MOST_ENGINES or per_group < 1:
        raise ArgumentError(f"there are 1 to {MOST_ENGINES} engines and at least one channel in a group", code=_CODE)
    sizes = np.asarray(channel_nbytes, np.int64)
    sets, end = [], 0
    for engine in range(engines):
        own = sizes[engine::engines]
        start = -(-end // ALIGNMENT) * ALIGNMENT if len(own) else end
        ends = start + np.cumsum(own)
        firsts = range(0, len(own), per_group)
        offsets = [start, *ends[per_group - 1 : -1 : per_group].tolist()] if len(own) else []
        sets.append(
            tuple(ChannelGroup(offset, min(per_group, len(own) - at)) for offset, at in zip(offsets, firsts, strict=True))
        )
        end = int(ends[-1]) if len(own) else end
    if end >= _WORD:
        raise UnsupportedError(f"weights of {end} bytes are beyond 32-bit offsets", code="E_RANGE", hint="split the tensor")
    return ChannelTable(tuple(sets)), end
