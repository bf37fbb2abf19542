"""Mutations of GGUF files: numbers, keys and lines of the tensor table, found by walking the file."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

from fuzz.mutators import plain
from fuzz.mutators.values import TEXTS, packed

__all__ = ["MAGIC", "mutate"]

MAGIC = b"GGUF"
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MOST = 4000  # fields of a file worth finding


class _Walk(NamedTuple):
    fields: list[tuple[int, int]]
    """Place and size of every number."""
    texts: list[tuple[int, int]]
    """Place of a length, and the bytes behind it."""
    keys: list[tuple[int, int]]
    lines: list[tuple[int, int]]


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0
        self.walk = _Walk([], [], [], [])

    def number(self, size: int) -> int:
        if self.at + size > len(self.raw) or len(self.walk.fields) > _MOST:
            raise EOFError
        self.walk.fields.append((self.at, size))
        self.at += size
        return int.from_bytes(self.raw[self.at - size : self.at], "little")

    def text(self) -> None:
        begin = self.at
        length = self.number(8)
        if length > len(self.raw) - self.at:
            raise EOFError
        self.walk.texts.append((begin, length))
        self.at += length

    def value(self, kind: int) -> None:
        if kind == 8:
            self.text()
        elif kind == 9:
            item, count = self.number(4), self.number(8)
            for _ in range(min(count, _MOST)):
                self.value(item)
        else:
            self.number(_SIZES.get(kind, len(self.raw)))


def _walked(raw: bytes) -> _Walk:
    reader = _Reader(raw)
    try:
        reader.at = 4
        reader.number(4)
        tensors, keys = reader.number(8), reader.number(8)
        for _ in range(min(keys, _MOST)):
            begin = reader.at
            reader.text()
            reader.value(reader.number(4))
            reader.walk.keys.append((begin, reader.at))
        for _ in range(min(tensors, _MOST)):
            begin = reader.at
            reader.text()
            for _ in range(min(reader.number(4), 9)):
                reader.number(8)
            reader.number(4)
            reader.number(8)
            reader.walk.lines.append((begin, reader.at))
    except (EOFError, RecursionError):
        pass
    return reader.walk


def mutate(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        raw = _edited(rng, raw, donor)
    return raw


def _counted(raw: bytes, at: int, change: int) -> bytes:
    (count,) = struct.unpack_from("<Q", raw, at)
    return raw[:at] + packed(count + change, 8) + raw[at + 8 :]


def _edited(rng: random.Random, raw: bytes, donor: bytes) -> bytes:
    walk = _walked(raw)
    records, count_at = (walk.keys, 16) if rng.randrange(3) else (walk.lines, 8)
    match rng.randrange(8):
        case 0 | 1 | 2 if walk.fields:
            return plain.number_at(rng, raw, *rng.choice(walk.fields))
        case 3 if walk.texts:
            at, length = rng.choice(walk.texts)
            new = rng.choice(TEXTS).encode()
            if rng.randrange(2):
                begin, size = rng.choice(walk.texts)
                new = raw[begin + 8 : begin + 8 + size]
            return raw[:at] + packed(len(new), 8) + new + raw[at + 8 + length :]
        case 4 if records:  # gone, its count made right more often than not
            begin, end = rng.choice(records)
            return _counted(raw[:begin] + raw[end:], count_at, -1 if rng.randrange(4) else 0)
        case 5 if records:  # there twice, or another's
            begin, end = rng.choice(records)
            piece = raw[begin:end]
            if donor[:4] == MAGIC and rng.randrange(2):
                other = _walked(donor)
                found = other.keys if records is walk.keys else other.lines
                piece = donor[slice(*rng.choice(found))] if found else piece
            return _counted(raw[:begin] + piece + raw[begin:], count_at, 1 if rng.randrange(4) else 0)
        case 6 if walk.keys:  # a value of another type
            begin, end = rng.choice(walk.keys)
            kind_at = begin + 8 + int.from_bytes(raw[begin : begin + 8], "little")
            return raw[:kind_at] + packed(rng.randrange(14), 4) + raw[kind_at + 4 :]
        case _:
            return plain.mutate(rng, raw, donor)
