"""Protocol Buffers on the wire: fields of a message read where they lie, and messages made of pieces.

    tag = varint (number << 3 | kind)      0 varint · 1 eight bytes · 2 varint length, that many bytes · 5 four bytes

Which fields a message has is the caller's business: what it does not know it passes over or copies. Lengths are compared with
the bytes that are left of the message around them, so nothing reaches out of its own. A field or a key that may be there once
and is there twice is refused: readers differ in which of the two counts, or merge them, and no writer makes such a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from flyweight.foundation.errors import LimitError, MalformedError, TruncatedError

VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
_FIXED = {EIGHT_BYTES: 8, FOUR_BYTES: 4}
_MOST_BITS = 64
_MOST_REPEATED = 1 << 14
"""Entries of a map, and of what `few` lists."""


class Field(NamedTuple):
    number: int
    kind: int
    begin: int
    """Where its tag is."""
    start: int
    """Where its content begins; of a varint, the varint itself."""
    end: int
    value: int
    """Of a varint."""


class Message:
    """A message that lies in `data`, the bytes of a whole file."""

    __slots__ = ("data", "end", "file", "start")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None, *, file: str = "") -> None:
        self.data, self.start, self.end, self.file = data, start, len(data) if end is None else end, file

    def __iter__(self) -> Iterator[Field]:
        return self.fields()

    def fields(self, wanted: int = 0) -> Iterator[Field]:
        """All fields, or those of one number; the others are checked all the same."""
        at, end, data = self.start, self.end, self.data
        while at < end:
            begin, tag = at, data[at]
            if tag < 0x80:  # as most are
                at += 1
            else:
                tag, at = self._varint(at)
            number, kind = tag >> 3, tag & 7
            start, value = at, 0
            if kind == BYTES:
                if at < end and data[at] < 0x80:
                    length, start = data[at], at + 1
                else:
                    length, start = self._varint(at)
                at = start + length
            elif kind == VARINT:
                value, at = self._varint(at)
            elif kind in _FIXED:
                at += _FIXED[kind]
            else:
                raise self._malformed(f"a field of kind {kind}, which is none", begin)
            if at > end:
                raise TruncatedError(
                    f"a field of {at - start} bytes in a message that has {end - start} left", file=self.file, offset=begin
                )
            if not number:
                raise self._malformed("a field without a number", begin)
            if not wanted or number == wanted:
                yield Field(number, kind, begin, start, at, value)

    def _varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while at < self.end:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << _MOST_BITS) - 1, at
            shift += 7
            if shift >= _MOST_BITS + 6:
                raise self._malformed("a number of more than ten bytes", at)
        raise TruncatedError("a number is cut short", file=self.file, offset=at)

    def _malformed(self, problem: str, offset: int) -> MalformedError:
        return MalformedError(f"not a protocol buffer: {problem}", code="E_PROTOBUF", file=self.file, offset=offset)

    def sub(self, field: Field) -> Message:
        """The message that a field holds."""
        if field.kind != BYTES:
            raise self._malformed(f"field {field.number} must be a message", field.start)
        return Message(self.data, field.start, field.end, file=self.file)

    def all(self, number: int) -> Iterator[Message]:
        return map(self.sub, self.fields(number))

    def few(self, number: int) -> list[Message]:
        """The same as a list, which is bounded."""
        found = list(islice(self.all(number), _MOST_REPEATED + 1))
        if len(found) > _MOST_REPEATED:
            raise LimitError(
                f"field {number} is there more than {_MOST_REPEATED} times", code="E_BUDGET", file=self.file, offset=self.start
            )
        return found

    def _once(self, number: int) -> Field | None:
        found = None
        for field in self.fields(number):
            if found is not None:
                raise self._malformed(f"field {number} is there twice", field.begin)
            found = field
        return found

    def one(self, number: int) -> Message | None:
        found = self._once(number)
        return None if found is None else self.sub(found)

    def require(self, number: int, what: str) -> Message:
        if (found := self.one(number)) is None:
            raise self._malformed(f"there is no {what}", self.start)
        return found

    def integer(self, number: int, default: int = 0) -> int:
        if (found := self._once(number)) is None:
            return default
        if found.kind != VARINT:
            raise self._malformed(f"field {number} must be a number", found.start)
        return found.value

    def integers(self, number: int) -> list[int]:
        """Of a repeated field, packed or one by one. Signed, as `int64` and `int32` are."""
        values: list[int] = []
        for field in self.fields(number):
            if field.kind == VARINT:
                values.append(field.value)
                continue
            packed = self.sub(field)
            at = packed.start
            while at < packed.end:
                value, at = packed._varint(at)
                values.append(value)
        return [value - (1 << _MOST_BITS) if value >> _MOST_BITS - 1 else value for value in values]

    def text(self, number: int, default: str = "") -> str:
        found = self.one(number)
        return default if found is None else found.as_text()

    def texts(self, number: int) -> list[str]:
        return [found.as_text() for found in self.all(number)]

    def as_text(self) -> str:
        try:
            return str(self.data[self.start : self.end], "utf-8")
        except UnicodeDecodeError as error:
            raise self._malformed(f"a text is not UTF-8: {error.reason}", self.start) from None

    def map(self, number: int) -> dict[str, Message]:
        """A map from text to messages."""
        found: dict[str, Message] = {}
        for entry in self.few(number):
            if (key := entry.text(1)) in found:
                raise self._malformed(f"the key '{key[:80]}' is there twice", entry.start)
            found[key] = entry.one(2) or Message(b"", file=self.file)
        return found

    @property
    def raw(self) -> bytes:
        return self.data[self.start : self.end]

    def __len__(self) -> int:
        return self.end - self.start


# Making messages ----------------------------------------------------------------------------------


class Hole(NamedTuple):
    """Bytes of a message that are filled in later."""

    key: tuple[str, str]
    nbytes: int


class Pieces:
    """Bytes and holes in a row: a message whose length is known before all of its bytes are."""

    __slots__ = ("items", "nbytes")

    def __init__(self, items: Iterable[bytes | Hole | Pieces] = ()) -> None:
        self.items: list[bytes | Hole] = []
        self.nbytes = 0
        for item in items:
            self.items += item.items if isinstance(item, Pieces) else (item,)
            self.nbytes += len(item) if isinstance(item, bytes) else item.nbytes

    def laid_out(self) -> tuple[list[tuple[int, bytes]], dict[tuple[str, str], int]]:
        """The bytes at their offsets, and the offset of each hole by its key."""
        at, chunks, holes, run = 0, list[tuple[int, bytes]](), dict[tuple[str, str], int](), list[bytes]()
        begin = 0
        for item in self.items:
            if isinstance(item, bytes):
                run.append(item)
                at += len(item)
                continue
            if run:
                chunks.append((begin, b"".join(run)))
                run = []
            holes[item.key] = at
            at += item.nbytes
            begin = at
        if run:
            chunks.append((begin, b"".join(run)))
        return [chunk for chunk in chunks if chunk[1]], holes


def varint(value: int) -> bytes:
    value &= (1 << _MOST_BITS) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def field(number: int, *content: bytes | str | Hole | Pieces) -> Pieces:
    """A message, text or bytes as a field."""
    inside = Pieces(item.encode() if isinstance(item, str) else item for item in content)
    return Pieces((varint(number << 3 | BYTES) + varint(inside.nbytes), inside))


def packed_field(number: int, values: Iterable[int]) -> Pieces:
    return field(number, b"".join(map(varint, values)))


def map_field(number: int, key: str, *content: bytes | str | Hole | Pieces) -> Pieces:
    return field(number, field(1, key), field(2, *content))
