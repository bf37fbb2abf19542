"""The one bounds-checked reader of untrusted bytes. Every container is a table over it.

A cursor walks a source forward. Each read is compared with the bytes that are left *before*
anything is allocated, so a length field can lie only up to the size of the file; counts are
bounded by what their smallest encoding would need. `check_shape` and `check_name` hold the
rules that all formats share. Nothing else in the package unpacks integers from a file.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

from flyweight.foundation.errors import LimitError, MalformedError, TruncatedError
from flyweight.foundation.limits import MAX_ELEMENTS, MAX_NAME_BYTES, MAX_PARSE_BYTES, MAX_RANK, MAX_STRING_BYTES
from flyweight.foundation.manifest import NUMBER_CODES, Numbers

_WINDOW = 1 << 20
_TEXT_NBYTES = 64  # what a string of a long array takes, its length included, rounded up
_CUT = 1 << 16  # bytes of strings cut at once: arrays this small lie in memory that was used before, larger ones in new pages
_TEXT_OBJECT_NBYTES = 64  # what a string of a list takes in memory beside its characters
_SEPARATOR = bytes(8)


class Readable(Protocol):
    """Bytes with random access: what a cursor reads from (see `sources`)."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def read(self, offset: int, length: int) -> memoryview: ...


SCALARS = {label: struct.Struct(f"<{code}") for label, code in NUMBER_CODES.items() if label != "bool"}
"""How a number of each type lies in a file."""
_LENGTH = SCALARS["u64"]


class Budget:
    """What one parse may still allocate. Whoever makes objects of what a file says charges their bytes here first.

    Small objects are charged at no less than they take, so the budget bounds their number, and with it the time.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_PARSE_BYTES

    def spend(self, nbytes: int, what: str, *, file: str | None = None, offset: int | None = None) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise LimitError(
                f"reading {what} would take more than {MAX_PARSE_BYTES >> 20} MB of memory",
                code="E_BUDGET",
                file=file,
                offset=offset,
                hint="no known model needs that much: get the file from a source you trust, or split it",
            )


def utf8(raw: bytes | memoryview, what: str, *, file: str | None = None, offset: int | None = None) -> str:
    """Decode text strictly: invalid UTF-8 (lone surrogates included) is an error, never a replacement."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"{what} is not valid UTF-8: {error.reason}", code="E_UTF8", file=file, offset=offset) from None


def check_name(name: str, *, file: str | None = None) -> str:
    """A tensor name: not empty, at most 1,024 bytes, no NUL."""
    if 0 < len(name) <= MAX_NAME_BYTES // 4 and "\0" not in name:  # nearly all: no character takes more than four
        return name
    if not name:
        raise MalformedError("a tensor has an empty name", code="E_NAME", file=file)
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise LimitError(f"a tensor name is longer than {MAX_NAME_BYTES} bytes", code="E_NAME", file=file, tensor=name)
    if "\0" in name:
        raise MalformedError("a tensor name contains NUL", code="E_NAME", file=file, tensor=name)
    return name


def check_shape(shape: object, *, file: str | None = None, tensor: str | None = None) -> tuple[int, ...]:
    """A shape: at most 8 non-negative integers whose product, zero dimensions counted as one, is at most 2^59."""
    if not isinstance(shape, list | tuple):
        raise MalformedError("a shape must be a list of integers", code="E_SHAPE", file=file, tensor=tensor)
    if len(shape) > MAX_RANK:
        raise LimitError(f"rank {len(shape)} exceeds the limit of {MAX_RANK}", code="E_RANK", file=file, tensor=tensor)
    product = 1
    for dim in shape:
        if type(dim) is not int or dim < 0:
            raise MalformedError(f"{dim!r} is not a dimension", code="E_SHAPE", file=file, tensor=tensor)
        product *= max(dim, 1)
    if product > MAX_ELEMENTS:
        raise LimitError("the number of elements exceeds 2^59", code="E_SHAPE", file=file, tensor=tensor)
    return tuple(shape)


class Cursor:
    """Reads typed values from `source` between `offset` and `end`, in order."""

    __slots__ = ("_buffer", "_start", "budget", "end", "offset", "source")

    def __init__(self, source: Readable, offset: int = 0, end: int | None = None) -> None:
        self.source = source
        self.budget = Budget()
        self.end = source.size if end is None else min(end, source.size)
        self.offset = offset
        self._buffer = memoryview(b"")
        self._start = 0

    @property
    def remaining(self) -> int:
        return self.end - self.offset

    def malformed(self, message: str, code: str, *, tensor: str | None = None, hint: str | None = None) -> MalformedError:
        """An error located at this cursor, for the caller to raise."""
        return MalformedError(message, code=code, file=self.source.name, offset=self.offset, tensor=tensor, hint=hint)

    def _require(self, length: int, what: str) -> None:
        if length < 0 or length > self.remaining:
            raise TruncatedError(
                f"{what} needs {length} bytes but {max(self.remaining, 0)} are left",
                file=self.source.name,
                offset=self.offset,
            )

    def _ensure(self, length: int, what: str) -> int:
        """Have `length` bytes at the offset in the window; return their index there."""
        self._require(length, what)
        at = self.offset - self._start
        if at < 0 or at + length > len(self._buffer):
            self._start, at = self.offset, 0
            self._buffer = self.source.read(self.offset, min(max(length, _WINDOW), self.remaining))
        return at

    def scalar(self, label: str, what: str = "a value") -> Any:
        """One little-endian integer or float; `label` is a DType label."""
        codec = SCALARS[label]
        at = self._ensure(codec.size, what)
        self.offset += codec.size
        return codec.unpack_from(self._buffer, at)[0]

    def u8(self, what: str = "a byte") -> int:
        return int(self.scalar("u8", what))

    def u32(self, what: str = "a 32-bit field") -> int:
        return int(self.scalar("u32", what))

    def u64(self, what: str = "a 64-bit field") -> int:
        return int(self.scalar("u64", what))

    def take(self, length: int, what: str = "a field") -> memoryview:
        """The next `length` bytes."""
        at = self._ensure(length, what)
        self.offset += length
        return self._buffer[at : at + length]

    def skip(self, length: int, what: str = "a field") -> int:
        """Pass over the next `length` bytes, which stay unread; where they begin."""
        self._require(length, what)
        self.offset += length
        return self.offset - length

    def count(self, value: int, smallest: int, limit: int, what: str) -> int:
        """Accept `value` as a number of items of at least `smallest` bytes each."""
        if value > limit:
            raise LimitError(f"{value} {what} exceed the limit of {limit}", file=self.source.name, offset=self.offset)
        self._require(value * smallest, f"{value} {what}")
        return value

    def scalars(self, label: str, count: int, what: str = "an array") -> list[Any]:
        """`count` numbers in a row."""
        codec = SCALARS[label]
        raw = self.take(count * codec.size, what)
        return list(struct.unpack(f"<{count}{codec.format[-1]}", raw))

    def spend(self, nbytes: int, what: str) -> None:
        """Charge the budget for objects that are about to be made of what lies here."""
        self.budget.spend(nbytes, what, file=self.source.name, offset=self.offset)

    def numbers(self, label: str, count: int, what: str = "an array") -> Numbers:
        """`count` numbers or truth values in a row, kept as they lie."""
        nbytes = count * (1 if label == "bool" else SCALARS[label].size)
        self.spend(nbytes, what)
        raw = bytes(self.take(nbytes, what))
        if label == "bool" and (wrong := raw.translate(None, b"\0\1")):
            raise self.malformed(f"a bool is {wrong[0]}, neither 0 nor 1", "E_BOOL")
        return Numbers(label, raw)

    def text(self, limit: int = MAX_STRING_BYTES, what: str = "a string") -> str:
        """A string with a 64-bit length before it."""
        start = self.offset
        at = self._ensure(8, what)
        length = _LENGTH.unpack_from(self._buffer, at)[0]
        if length > limit and length <= self.remaining - 8:
            raise LimitError(f"{what} has {length} bytes; the limit is {limit}", file=self.source.name, offset=start)
        self.offset += 8
        text = utf8(self.take(length, what), what, file=self.source.name, offset=start)
        self.spend(text.__sizeof__(), what)
        return text

    def texts(self, count: int, what: str = "a string") -> list[str]:
        """`count` length-prefixed strings.

        Vocabularies are long, so the window's short strings are cut all at once and its others in a tight loop; one that
        does not lie whole in the window, or breaks a rule, goes through `text`, which moves the window or raises.
        """
        unpack, values = _LENGTH.unpack_from, list[str]()
        while len(values) < count:
            start = self._ensure(8, f"the length of {what}")
            window = bytes(self._buffer[start : start + min(_CUT, _TEXT_NBYTES * (count - len(values)))])
            made = len(values)
            short, at = _short_texts(window, count - made)
            values += short
            last = len(window) - 8
            try:
                while at <= last and len(values) < count:
                    stop = at + 8 + unpack(window, at)[0]
                    if stop > len(window) or stop - at > MAX_STRING_BYTES:
                        break
                    values.append(window[at + 8 : stop].decode())
                    at = stop
            except UnicodeDecodeError:
                pass  # `text` says where
            self.spend((len(values) - made) * _TEXT_OBJECT_NBYTES + at * (1 if window.isascii() else 4), what)
            self.offset += at
            if len(values) < count:
                values.append(self.text(what=what))
        return values


def _short_texts(window: bytes, count: int) -> tuple[list[str], int]:
    """Up to `count` strings of 1 to 255 bytes from the start of a window, and where they end; none where that is not sure.

    The length of such a string is one byte before seven zeros. Where each such place is as far from the one before as
    that one's length says, all of them are lengths; with these bytes zeroed, eight zeros part the strings, and one
    decoding and one split make them all. A string with a zero in it leaves everything to the caller.
    """
    import numpy as np  # which declaring a format, or showing its options, does not need

    raw = np.frombuffer(window, np.uint8)
    zeros = raw == 0
    for step in (1, 2, 3):  # runs of 2, 4 and 7
        zeros = zeros[:-step] & zeros[step:]
    lengths_at = np.flatnonzero(zeros[1:])
    if not len(lengths_at) or lengths_at[0]:
        return [], 0
    follows = lengths_at + 8 + raw[lengths_at]
    wrong = np.flatnonzero(lengths_at[1:] != follows[:-1])
    whole = min(int(wrong[0]) if len(wrong) else len(follows) - 1, count)
    if not whole:
        return [], 0
    end = int(follows[whole - 1])
    parted = raw[:end].copy()
    parted[lengths_at[:whole]] = 0
    if np.count_nonzero(parted) + whole * len(_SEPARATOR) != end:
        return [], 0
    try:
        return str(parted[len(_SEPARATOR) :].data, "utf-8").split(_SEPARATOR.decode()), end
    except UnicodeDecodeError:
        return [], 0
