"""The kernel unit: what a layer's weights are compiled to, six sections and the descriptor that names them.

    t1 = s3008                       ; unit, bytes
      lut:     -                     ; typeno, bitdepth, lut_bytes
      pal:     (4, 4, 1, 32)         ; palette_format, bitdepth, num_luts, lut_bytes
      ocgs:    (4, 8)                ; engines, groups
      scale:   (5, 64)               ; typeno, channels
      bias:    -                     ; typeno, channels
      weights: (9, 4, 2048)          ; typeno, bitdepth, bytes

The guide gives the first line, the six names, and the tuples of `lut` and `pal`; `lut_bytes` of `pal` is that of one table. The
other tuples are ours, and so is the binary form: a header of 256 bytes, then each section at the next multiple of 64 bytes.

    0x00  u32 unit    0x04  u32 version, 1    0x08  u64 bytes of the unit
    0x10  for each section: u64 offset and four u64 fields, the tuple; all 0 where the section is absent

`lut` and `pal` come first, one after the other: they are placed by one cursor and share one budget of on-chip memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from flyweight.foundation.cursor import Cursor, Readable
from flyweight.foundation.errors import CUT_SHORT, MalformedError, UnsupportedError
from flyweight.sources import MemorySource
from flyweight.targets.ane.facts.kernel_format import TYPE_NUMBERS
from flyweight.targets.ane.records.activation_record import RECORD_BYTES, ActivationRecord
from flyweight.targets.ane.records.channel_groups import ALIGNMENT, ChannelTable, table_nbytes
from flyweight.targets.ane.records.engine_numbers import Array

HEADER_BYTES = 256
_VERSION = 1
_FIELDS = 4
_MOST = 1 << 48  # of any number in a descriptor, so that products stay small
_CODE = "E_KERNEL_UNIT"
_VECTOR_BYTES = {TYPE_NUMBERS["fp16"]: 2, TYPE_NUMBERS["fp32"]: 4}


class Lut(NamedTuple):
    """The activation record."""

    typeno: int
    bitdepth: int
    lut_bytes: int

    @property
    def nbytes(self) -> int:
        return self.lut_bytes


class Pal(NamedTuple):
    """The tables of a palette; more than one mark what the guide calls vector-palettized."""

    palette_format: int
    bitdepth: int
    num_luts: int
    lut_bytes: int

    @property
    def nbytes(self) -> int:
        return self.num_luts * self.lut_bytes


class Ocgs(NamedTuple):
    """The records of channel groups."""

    engines: int
    groups: int

    @property
    def nbytes(self) -> int:
        return table_nbytes(self.engines, self.groups)


class Vector(NamedTuple):
    """A number for each output channel: scales or biases."""

    typeno: int
    channels: int

    @property
    def nbytes(self) -> int:
        return self.channels * _VECTOR_BYTES.get(self.typeno, 0)


class Weights(NamedTuple):
    """Packed weights or indices; of sparse weights, for each channel its mask and then its values."""

    typeno: int
    bitdepth: int
    nbytes: int


Section = Lut | Pal | Ocgs | Vector | Weights


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a unit holds: plain numbers, no weights."""

    unit: int
    lut: Lut | None
    pal: Pal | None
    ocgs: Ocgs
    scale: Vector | None
    bias: Vector | None
    weights: Weights

    KINDS: ClassVar[Mapping[str, type[Section]]] = {
        "lut": Lut, "pal": Pal, "ocgs": Ocgs, "scale": Vector, "bias": Vector, "weights": Weights,
    }  # fmt: skip
    """The sections in their order."""

    def __post_init__(self) -> None:
        numbers = [self.unit, *(number for _, section in self.sections() for number in section or ())]
        if not all(0 <= number < _MOST for number in numbers) or self.unit >= 1 << 32:
            raise MalformedError("a number of a kernel unit is out of range", code=_CODE)
        for name, section in self.sections():
            if section is not None and not section.nbytes:
                raise MalformedError(f"the section {name} of a kernel unit is empty, or of an unknown type", code=_CODE)

    def sections(self) -> Iterator[tuple[str, Section | None]]:
        return ((name, getattr(self, name)) for name in self.KINDS)

    def offsets(self) -> dict[str, int]:
        """Where each section begins."""
        found, cursor = {}, HEADER_BYTES
        for name, section in self.sections():
            if section is not None:
                found[name] = cursor
                cursor = _aligned(cursor + section.nbytes)
        return found

    @property
    def nbytes(self) -> int:
        """Of the unit, whose last section is `weights`."""
        return self.offsets()["weights"] + self.weights.nbytes

    @property
    def table_bytes(self) -> int:
        """What activation record and palette take of the memory they share."""
        return sum(_aligned(section.nbytes) for section in (self.lut, self.pal) if section is not None)

    def check_budget(self, budget: int) -> None:
        """UnsupportedError if the tables do not fit. No source gives the size of a target's table memory."""
        if self.table_bytes > budget:
            raise UnsupportedError(
                f"activation record and palette take {self.table_bytes} bytes of a table memory of {budget}",
                code="E_TABLE_MEMORY",
                hint="use fewer or smaller tables",
            )

    # Text

    def text(self) -> str:
        lines = [_line(f"t{self.unit} = s{self.nbytes}", "unit, bytes")]
        for name, section in self.sections():
            shown = "-" if section is None else f"({', '.join(map(str, section))})"
            lines.append(_line(f"  {name + ':':<9}{shown}", ", ".join(self.KINDS[name]._fields)))
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Descriptor:
        """The inverse of `text`. Comments and spaces do not count."""
        lines = [stripped for line in text[:_MOST_TEXT].splitlines() if (stripped := line.partition(";")[0].strip())]
        head = _HEAD.fullmatch(lines[0]) if lines else None
        if head is None or len(lines) != 1 + len(cls.KINDS):
            raise MalformedError("a descriptor is a line `t… = s…` and six sections", code=_CODE)
        found = [_parsed(line, name, kind) for line, (name, kind) in zip(lines[1:], cls.KINDS.items(), strict=True)]
        descriptor = cls(int(head[1]), *found)  # type: ignore[arg-type]
        if int(head[2]) != descriptor.nbytes:
            raise MalformedError(f"the sections make {descriptor.nbytes} bytes, not {head[2]}", code=_CODE)
        return descriptor

    # Bytes

    def header(self) -> bytes:
        offsets = self.offsets()
        numbers = [self.nbytes]
        for name, section in self.sections():
            own = [] if section is None else [offsets[name], *section]
            numbers += own + [0] * (1 + _FIELDS - len(own))
        return np.array([self.unit, _VERSION], "<u4").tobytes() + np.array(numbers, "<u8").tobytes()

    @classmethod
    def read(cls, cursor: Cursor) -> Descriptor:
        unit, version = cursor.scalars("u32", 2, "the header of a kernel unit")
        if version != _VERSION:
            raise UnsupportedError(f"kernel units of version {version} are not known", code=_CODE, file=cursor.source.name)
        size, *numbers = cursor.scalars("u64", 1 + len(cls.KINDS) * (1 + _FIELDS), "the header of a kernel unit")
        sections: list[Section | None] = []
        offsets: dict[str, int] = {}
        for at, (name, kind) in enumerate(cls.KINDS.items()):
            offset, *values = numbers[at * (1 + _FIELDS) : (at + 1) * (1 + _FIELDS)]
            count = len(kind._fields)
            if any(values[count:]) or (not offset and any(values)):
                raise cursor.malformed(f"the section {name} has fields it does not use", _CODE)
            sections.append(kind(*values[:count]) if offset else None)
            offsets |= {name: offset} if offset else {}
        if not (offsets.keys() >= {"ocgs", "weights"}):
            raise cursor.malformed("a kernel unit has channel groups and weights", _CODE)
        try:
            descriptor = cls(unit, *sections)  # type: ignore[arg-type]
        except MalformedError as error:
            raise error.at(file=cursor.source.name) from None
        if offsets != descriptor.offsets() or size != descriptor.nbytes:
            raise cursor.malformed("sections do not lie one after the other at multiples of 64 bytes", _CODE)
        return descriptor


@dataclass(frozen=True, slots=True, eq=False)
class KernelUnit:
    """A descriptor and its sections. Arrays are bytes: views where they were read."""

    descriptor: Descriptor
    groups: ChannelTable
    weights: Array
    activation: ActivationRecord | None = None
    tables: Array | None = None
    scale: Array | None = None
    bias: Array | None = None

    def contents(self) -> dict[str, bytes | memoryview]:
        """The bytes of the sections that are there, in order."""
        deltas = self.descriptor.lut is not None and self.descriptor.lut.lut_bytes != RECORD_BYTES
        held = {
            "lut": None if self.activation is None else self.activation.to_bytes(deltas=deltas),
            "pal": self.tables,
            "ocgs": self.groups.to_bytes(),
            "scale": self.scale,
            "bias": self.bias,
            "weights": self.weights,
        }
        return {name: part if isinstance(part, bytes) else part.data for name, part in held.items() if part is not None}

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The unit's bytes in order."""
        return placed(self.descriptor, {name: [content] for name, content in self.contents().items()})

    @classmethod
    def read(cls, source: Readable) -> KernelUnit:
        """MalformedError for bytes that `pieces` does not write."""
        cursor = Cursor(source)
        descriptor = Descriptor.read(cursor)
        if source.size != descriptor.nbytes:
            raise MalformedError(
                f"the unit has {source.size} bytes, not {descriptor.nbytes}", code=_CODE, file=source.name, hint=CUT_SHORT
            )
        content: dict[str, memoryview] = {}
        for name, offset in descriptor.offsets().items():
            if any(cursor.take(offset - cursor.offset, "padding")):
                raise cursor.malformed("padding of a kernel unit is not zero", _CODE)
            nbytes = getattr(descriptor, name).nbytes
            content[name] = source.read(cursor.skip(nbytes, name), nbytes)
        groups = ChannelTable.read(Cursor(MemorySource(content["ocgs"], source.name)))
        if Ocgs(len(groups.engines), len(groups)) != descriptor.ocgs:
            raise cursor.malformed("there are not as many channel groups as the descriptor says", _CODE)
        if any(group.offset >= descriptor.weights.nbytes for group in groups):
            raise cursor.malformed("a channel group lies beyond the weights", _CODE)
        lut = content.get("lut")
        activation = None if lut is None else ActivationRecord.read(MemorySource(lut, source.name))
        arrays = {name: np.frombuffer(view, np.uint8) for name, view in content.items()}
        return cls(descriptor, groups, arrays["weights"], activation, *(arrays.get(name) for name in ("pal", "scale", "bias")))


def placed(descriptor: Descriptor, contents: Mapping[str, Iterable[bytes | memoryview]]) -> Iterator[bytes | memoryview]:
    """The bytes of a unit: its header, and sections that come in pieces, each at its offset."""
    yield descriptor.header()
    end = HEADER_BYTES
    for name, offset in descriptor.offsets().items():
        yield bytes(offset - end)
        yield from contents[name]
        end = offset + getattr(descriptor, name).nbytes


_MOST_TEXT = 1 << 16
_HEAD = re.compile(r"t(\d{1,10}) = s(\d{1,20})", re.ASCII)
_NUMBERS = re.compile(r"\(\s*(\d{1,15}(?:\s*,\s*\d{1,15})*)\s*\)", re.ASCII)


def _parsed(line: str, name: str, kind: type[Section]) -> Section | None:
    label, _, rest = line.partition(":")
    tuple_ = _NUMBERS.fullmatch(rest.strip())
    if label.strip() == name and rest.strip() == "-" and name not in ("ocgs", "weights"):
        return None
    if label.strip() != name or tuple_ is None or len(numbers := tuple_[1].split(",")) != len(kind._fields):
        raise MalformedError(f"expected `{name}: ({', '.join(kind._fields)})`, not `{line}`", code=_CODE)
    return kind(*map(int, numbers))


def _line(text: str, comment: str) -> str:
    return f"{text:<34} ; {comment}"


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
