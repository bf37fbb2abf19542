"""What is in a checkpoint, whatever its format: the table every container parses into and writes from.

A manifest holds no bytes of weights. `Entry.parts` says what each stored array looks like,
`Entry.extents` where it lies; a manifest that describes a file still to be written has no
extents until a container places it.

What a file may hold by the million is kept as the file has it: `Numbers` are metadata arrays, `Entries` a table of tensors,
and an item of either becomes an object when it is asked for.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, NamedTuple

from flyweight.foundation.tensor import CodecSpec, Layout, TensorSpec

DRAFT = "draft."
"""How the names of a draft head's tensors begin: they ride beside a model and are no part of it."""

NUMBER_CODES = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q",
    "f32": "f", "f64": "d", "bool": "?",
}  # fmt: skip
"""The letter that `struct` and `memoryview` have for each type of number; all are stored little-endian."""


class Extent(NamedTuple):
    """A run of bytes in one file of the bundle."""

    file: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class Typed(NamedTuple):
    """A metadata value with the type it has on disk: `u32`, `f32`, `bool`, `str`, or an array such as `[str]`.

    An array is any sequence; one of numbers that was read from a file is `Numbers`.
    """

    type: str
    value: Any

    @property
    def plain(self) -> Any:
        """The value as Python's own numbers, texts and lists."""
        return _plain(self.value)


def _plain(value: Any) -> Any:
    if isinstance(value, Numbers):
        return value.tolist()
    return (
        [_plain(item) for item in value]
        if isinstance(value, list) and any(isinstance(item, list | Numbers) for item in value)
        else value
    )


class Numbers(Sequence[Any]):
    """An array of numbers or truth values as its bytes. It equals a list of the same values.

    >>> Numbers("u16", b"\\x01\\x00\\x02\\x00") == [1, 2]
    True
    """

    __slots__ = ("raw", "type")

    def __init__(self, type_: str, raw: bytes) -> None:
        self.type = type_
        self.raw = raw

    def _view(self) -> memoryview[Any]:
        return memoryview(self.raw).cast(NUMBER_CODES[self.type])  # type: ignore[call-overload, no-any-return]

    def tolist(self) -> list[Any]:
        return self._view().tolist()

    def __getitem__(self, at: Any) -> Any:
        found = self._view()[at]
        return found.tolist() if isinstance(at, slice) else found

    def __len__(self) -> int:
        return len(self._view())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._view())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Numbers) and other.type == self.type:
            return other.raw == self.raw
        if not isinstance(other, list | tuple | Numbers):
            return NotImplemented
        return len(other) == len(self) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like the list it stands for

    def __repr__(self) -> str:
        first = ", ".join(map(repr, islice(self, 3)))
        return f"Numbers({self.type}, [{first}{', …' if len(self) > 3 else ''}], {len(self)} items)"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a checkpoint: its logical spec, its codec, its stored parts and where they lie."""

    name: str
    spec: TensorSpec
    codec: CodecSpec
    parts: Layout
    extents: Mapping[str, Extent] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.spec.size if self.spec.size else 0.0


class Entries(Mapping[str, Entry]):
    """A table of tensors that have one part each, as columns: a row takes a tenth of an `Entry`, which is made when asked for.

    Rows refer to a kind: the file, the spec, the codec and the layout that many tensors share.
    """

    __slots__ = ("_counted", "_kind_of", "_kinds", "_offsets", "_rows")

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._kinds: list[tuple[str, TensorSpec, CodecSpec, Layout]] = []
        self._kind_of = array("I")
        self._offsets = array("q")
        self._counted: list[tuple[Entry, int]] = []

    def add_kind(self, file: str, spec: TensorSpec, codec: CodecSpec, parts: Layout) -> int:
        """Its number, for rows to refer to."""
        self._kinds.append((file, spec, codec, parts))
        return len(self._kinds) - 1

    def extend(self, names: Sequence[str], kinds: Iterable[int], offsets: Iterable[int]) -> bool:
        """Add rows. False, and a table of no use, if a name is there twice."""
        first = len(self._offsets)
        self._kind_of.extend(kinds)
        self._offsets.extend(offsets)
        self._rows.update(zip(names, range(first, len(self._offsets)), strict=True))
        return len(self._rows) == len(self._offsets)

    def absorb(self, other: Entries) -> None:
        """Add the rows of another table, which has other names."""
        first = len(self._kinds)
        self._kinds += other._kinds
        self.extend(list(other._rows), (first + kind for kind in other._kind_of), other._offsets)

    def kinds(self) -> Sequence[tuple[Entry, int]]:
        """The first tensor of each kind, and how many there are."""
        if not self._counted and self._rows:
            firsts = dict(zip(reversed(self._kind_of), reversed(self._rows), strict=True))
            self._counted = [(self[firsts[kind]], count) for kind, count in Counter(self._kind_of).items()]
        return self._counted

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """The name, offset and bytes of each tensor."""
        sizes = self._sizes()
        return ((name, self._offsets[row], sizes[self._kind_of[row]]) for name, row in self._rows.items())

    def fill(self, start: int, end: int) -> bool:
        """Whether the tensors, in the order they are in, lie back to back from `start` to `end`."""
        sizes = self._sizes()
        try:
            ends = array("q", accumulate(map(sizes.__getitem__, self._kind_of), initial=start))
        except OverflowError:
            return False
        return ends.pop() == end and ends == self._offsets

    def _sizes(self) -> list[int]:
        """Bytes of a tensor of each kind."""
        return [sum(stored.nbytes for stored in parts.values()) for _, _, _, parts in self._kinds]

    def __getitem__(self, name: str) -> Entry:
        row = self._rows[name]
        file, spec, codec, parts = self._kinds[self._kind_of[row]]
        ((part, stored),) = parts.items()
        return Entry(name, spec, codec, parts, {part: Extent(file, self._offsets[row], stored.nbytes)})

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def keys(self) -> KeysView[str]:
        return self._rows.keys()


def kinds_of(entries: Mapping[str, Entry]) -> Iterable[tuple[Entry, int]]:
    """Tensors that share their spec, codec and layout: one of each kind, and how many there are."""
    if isinstance(entries, Entries):
        return entries.kinds()
    shared: dict[tuple[int, int, int], tuple[Entry, int]] = {}
    for entry in entries.values():
        key = id(entry.spec), id(entry.codec), id(entry.parts)
        first, count = shared.get(key, (entry, 0))
        shared[key] = first, count + 1
    return shared.values()


def is_digest(text: object) -> bool:
    """Whether something is the BLAKE3 of bytes as files record it: 64 hexadecimal digits."""
    return type(text) is str and re.fullmatch("[0-9a-f]{64}", text) is not None


@dataclass(frozen=True, slots=True)
class Digests:
    """The BLAKE3 that a checkpoint records of its own bytes, 64 digits by extent; an extent may be a side file's or many
    tensors'. `tensors` has the extents that each tensor's bytes lie in, `remedy` what to do where a digest is not right."""

    of: Mapping[Extent, str] = field(default_factory=dict)
    tensors: Mapping[str, tuple[Extent, ...]] = field(default_factory=dict)
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a checkpoint holds.

    `dialect` names the tensor-naming convention ("hf", "gguf"), or is empty when a file has
    none. `files` are the side files (config, tokenizer, unknown ones): an Extent in the
    bundle, or bytes when their content is made anew.
    """

    format: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, Typed] = field(default_factory=dict)
    files: Mapping[str, Extent | bytes] = field(default_factory=dict)
    dialect: str = ""
    digests: Digests = field(default_factory=Digests, compare=False, repr=False)

    def kinds(self) -> Iterable[tuple[Entry, int]]:
        return kinds_of(self.entries)

    @property
    def nbytes(self) -> int:
        return sum(count * entry.nbytes for entry, count in self.kinds())

    @property
    def weights(self) -> int:
        return sum(count * entry.spec.size for entry, count in self.kinds())

    @property
    def foreign(self) -> CodecSpec | None:
        """What stands for the quantization method that makes values of this checkpoint unreadable here, if one does."""
        return next((entry.codec for entry, _ in self.kinds() if entry.codec.is_foreign), None)

    def require_readable(self) -> None:
        """For whoever needs values, or a meaning for every tensor's name: UnsupportedError if there is `foreign` data."""
        if (codec := self.foreign) is not None:
            raise codec.unreadable()

    def value(self, key: str, default: Any = None) -> Any:
        """The plain value of a metadata key."""
        typed = self.metadata.get(key)
        return default if typed is None else typed.value
