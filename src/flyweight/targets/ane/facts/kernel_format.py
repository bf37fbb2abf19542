"""The kernel-format enum, 1 to 31 (and 41 of the newest builds), and the five tables the compiler keys on it.

    1 int8   2 uint8   3 invalid   4 fp16   5 e4m3   6 fp32
    7–10 11–14 15–18 19–22 23–26   palettes of 1, 2, 3, 4 and 6 bits; in each group the entries are int8, uint8, fp16, e4m3
    27                             palette of 8 bits
    28–30                          unity: identity and scale-only weights, which skip the multiply array
    31 int4   41 e2m1

The guide gives the ranges and no table. Values come from traces, a jump table and the ranges; each says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flyweight.targets.ane.facts.fact import Counter, Fact, Profile, disputed, inferred, measured, seed, unknown

PALETTES = range(7, 7 + 0x15)
UNITY = range(0x1C, 0x1C + 3)
ENTRY_BYTES = {"int8": 1, "uint8": 1, "fp16": 2, "e4m3": 1}
_IN_GROUP = ("int8", "uint8", "fp16", "e4m3")
_GROUPS = {1: 7, 2: 11, 3: 15, 4: 19, 6: 23}
_TRACED = {13, 21}
TYPE_NUMBERS = {
    "void": 1, "int8": 2, "uint8": 3, "int16": 4, "fp16": 5, "fp32": 6, "lookup table": 8, "uint4": 9, "e4m3": 16, "int4": 23,
}  # fmt: skip
"""Of the 24 element types of the descriptor, those that a source names."""


@dataclass(frozen=True, slots=True)
class KernelFormat:
    """A value of the enum. Helpers answer with facts; what they are not defined for is unknown."""

    value: int
    underlying: Fact[str]
    """The scalar type: of the weights, or of the entries of a palette."""
    bit_depth: Fact[int]
    """Bits of an index, or of a weight."""

    @property
    def is_palette(self) -> bool:
        return self.value in PALETTES

    @property
    def is_unity(self) -> bool:
        return self.value in UNITY

    @property
    def palette_format(self) -> Fact[str]:
        """The type of the palette's entries."""
        about = f"palette format of kernel format {self.value}"
        return (self.underlying if self.is_palette else unknown("only palettes have one")).named(about)

    def lut_bytes(self, tables: int) -> Fact[int]:
        """The bytes of so many codebooks: entries × bytes of an entry × tables."""
        about, bits, entry = f"LUT bytes of kernel format {self.value}", self.bit_depth.value, self.underlying.value
        if not self.is_palette or bits is None or entry is None:
            return unknown("only palettes have one").named(about)
        size = (ENTRY_BYTES[entry] << bits) * tables
        return inferred(size, "guide ch.25", "2^bits × bytes of an entry × tables").named(about)

    @property
    def typeno(self) -> Fact[int]:
        """The element type that the descriptor states. The sources number types, not kernel formats."""
        about, kind = f"type number of kernel format {self.value}", self.underlying.value
        if self.is_palette or self.is_unity or kind not in TYPE_NUMBERS:
            return unknown("no source says which type a palette or a unity format states").named(about)
        return inferred(TYPE_NUMBERS[kind], "guide ch.25", f"the number of the type {kind}").named(about)

    def under(self, profile: Profile) -> KernelFormat:
        return KernelFormat(self.value, self.underlying.under(profile), self.bit_depth.under(profile))

    def facts(self) -> tuple[Fact[Any], ...]:
        return self.underlying, self.bit_depth, self.palette_format, self.lut_bytes(1), self.typeno


def _format(value: int, underlying: Fact[str], bits: Fact[int]) -> KernelFormat:
    return KernelFormat(
        value, underlying.named(f"type of kernel format {value}"), bits.named(f"bit depth of kernel format {value}")
    )


def _palettes() -> list[KernelFormat]:
    depths = {bits: inferred(bits, "disassembly", "groups of four fill the guide's range 7 to 27") for bits in _GROUPS}
    found = []
    for bits, first in _GROUPS.items():
        for at, entry in enumerate(_IN_GROUP):
            traced = first + at in _TRACED
            kind = (
                measured(entry, "M6 study")
                if traced
                else inferred(entry, "disassembly", "order within a group as in the two formats that were traced")
            )
            found.append(_format(first + at, kind, measured(bits, "M6 study") if traced else depths[bits]))
    eight = inferred("fp16", "guide ch.25", "one value is left for 8 bits, and 8-bit codebooks take 512 bytes")
    return [*found, _format(27, eight, inferred(8, "disassembly", "the last value of the range"))]


_E4M3_IS_6 = "guide ch.36"
_SERIALISED = "32 bits in vectors; written as fp16"
KERNEL_FORMATS = {
    kind.value: kind
    for kind in (
        _format(1, measured("int8", "hwx", "824 traced calls; also the M6 study"), measured(8, "hwx")),
        _format(2, measured("uint8", "hwx", "its jump table"), measured(8, "hwx")),
        _format(3, unknown("not a kernel format: the compiler refuses it"), unknown("not a kernel format")),
        _format(4, measured("fp16", "hwx", "also where there is no weight"), measured(16, "hwx")),
        _format(
            5,
            disputed("e4m3", "hwx", Counter("fp32", _E4M3_IS_6, "e4m3 is 6 there"), "the guide's chapter 20 agrees"),
            disputed(8, "hwx", Counter(32, _E4M3_IS_6)),
        ),
        _format(
            6,
            disputed("fp32", "hwx", Counter("e4m3", _E4M3_IS_6), "what is left for it if 5 is e4m3"),
            disputed(32, "hwx", Counter(8, _E4M3_IS_6), _SERIALISED),
        ),
        *_palettes(),
        *(
            _format(value, inferred(kind, "M6 study", "order as in the palettes"), unknown("no source gives it"))
            for value, kind in ((28, "int8"), (29, "uint8"))
        ),
        _format(30, measured("fp16", "M6 study"), unknown("no source gives it")),
        _format(31, measured("int4", "hwx", "newer builds"), measured(4, "hwx")),
        _format(
            41,
            measured("e2m1", "hwx", "newest builds, outside the range of the guide"),
            inferred(4, "hwx", "from the name of the type"),
        ),
    )
}

KERNEL_FORMAT_RANGE: Fact[int] = seed(31).named("greatest kernel format")


def palette_format_of(bits: int, entry: str, profile: Profile) -> Fact[int]:
    """The enum value of a palette of so many bits and such entries; unknown where the enum has none."""
    return _value(f"kernel format of a {bits}-bit palette of {entry}", profile, lambda kind: kind.is_palette, entry, bits)


def scalar_format_of(kind: str, profile: Profile) -> Fact[int]:
    """The enum value of weights that are plain numbers of a type."""
    return _value(f"kernel format of {kind}", profile, lambda known: not (known.is_palette or known.is_unity), kind, None)


def _value(about: str, profile: Profile, among: Any, kind: str, bits: int | None) -> Fact[int]:
    for candidate in (found.under(profile) for found in KERNEL_FORMATS.values() if among(found)):
        if candidate.underlying.value == kind and bits in (None, candidate.bit_depth.value):
            known = candidate.underlying
            counter = None if known.counter is None else Counter(_other(candidate.value), known.counter.source)
            return Fact(about, candidate.value, known.provenance, known.source, known.note, counter)
    return unknown("the enum has no such format").named(about)


def _other(value: int) -> int:
    """The value that the other side of the dispute over 5 and 6 gives."""
    return 11 - value
