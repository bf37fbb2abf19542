"""KernelCfg and KernelDMA: the words in which a program says how its weights are stored.

A layout is the fields that a generation's register has. Fields were read in compiled programs; four words were seen whole, for
h18g. A word for any other case or generation follows from the fields, and is `inferred`.

    >>> hex(kernel_config("fp16").word(H18G))
    '0x10000082'
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

from flyweight.foundation.errors import ArgumentError, UnsupportedError
from flyweight.targets.ane.facts.fact import Fact, inferred, measured

FORMAT_CODES = {"uint8": 0, "int8": 1, "fp16": 2, "e4m3": 3}
"""The element type of weights, or of a palette's entries. Newer registers have a third bit, for int4 (4) and e2m1 (5)."""
NOT_PALETTIZED = 8
"""`palettized_bits` of weights without a palette."""


class Field(NamedTuple):
    first: int
    bits: int = 1

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1 << self.first


@dataclass(frozen=True)
class RegisterLayout:
    """The fields of a register, by their names in `KernelConfig` or `KernelDma`."""

    title: str
    fields: dict[str, Field]
    source: str

    def pack(self, values: dict[str, int]) -> int:
        word = 0
        for name, value in values.items():
            field = self.fields.get(name)
            if field is None:
                if value:
                    raise UnsupportedError(f"{self.title} has no field {name}", code="E_REGISTER")
                continue
            if not 0 <= value < 1 << field.bits:
                raise UnsupportedError(f"{name} of {self.title} has {field.bits} bits; {value} does not fit", code="E_REGISTER")
            word |= value << field.first
        return word

    def unpack(self, word: int) -> dict[str, int]:
        if not 0 <= word < 1 << 32:
            raise ArgumentError(f"{word:#x} is no 32-bit word", code="E_REGISTER")
        known = sum(field.mask for field in self.fields.values())
        if word & ~known:
            raise UnsupportedError(f"bits {word & ~known:#x} of {self.title} have no known meaning", code="E_REGISTER")
        return {name: (word & field.mask) >> field.first for name, field in self.fields.items()}


_SINCE_H13 = {
    "format": Field(0, 2), "palettized": Field(2), "palettized_bits": Field(4, 4), "sparse": Field(8),
    "group_kernel_reuse": Field(10),
}  # fmt: skip
_SINCE_H16 = _SINCE_H13 | {
    "sparse_binary": Field(15), "alignment": Field(16), "sparse_block_size": Field(21, 3), "asymmetric": Field(24),
}  # fmt: skip
_SINCE_H18G = _SINCE_H16 | {
    "aligned_bias": Field(17, 2), "aligned_post_scale": Field(19, 2), "palette_block_size": Field(25, 3),
    "detect_zeros": Field(28),
}  # fmt: skip

H13 = RegisterLayout("KernelCfg of H13 (0xC800)", _SINCE_H13, "hwx")
H16 = RegisterLayout("KernelCfg of H16 (0x4900)", _SINCE_H16, "hwx")
H18G = RegisterLayout("KernelCfg of h18g (0x1240)", _SINCE_H18G, "M6 study")
DMA_H18G = RegisterLayout(
    "KernelDMA of h18g (0x1540)",
    {
        "group_kernel_reuse": Field(4),
        "sparse": Field(5),
        "enable": Field(6),
        "palette_block_size": Field(11, 3),
        "bit_16": Field(16),
    },
    "M6 study",
)


@dataclass(frozen=True)
class KernelConfig:
    """The fields of KernelCfg. The guide says that the M1 detects zeros too; no register map before H17 has the field."""

    format: int
    palettized: int = 0
    palettized_bits: int = NOT_PALETTIZED
    sparse: int = 0
    group_kernel_reuse: int = 0
    sparse_binary: int = 0
    alignment: int = 0
    aligned_bias: int = 0
    aligned_post_scale: int = 0
    sparse_block_size: int = 0
    asymmetric: int = 0
    palette_block_size: int = 0
    """The binary logarithm of the vectors that an index stands for."""
    detect_zeros: int = 0

    def word(self, layout: RegisterLayout) -> int:
        """UnsupportedError for a field that the register does not have."""
        return layout.pack(asdict(self))

    @classmethod
    def from_word(cls, word: int, layout: RegisterLayout) -> KernelConfig:
        """UnsupportedError for bits that no source explains."""
        return cls(**layout.unpack(word))


@dataclass(frozen=True)
class KernelDma:
    """The fields of KernelDMA, the transfer of the weights."""

    enable: int = 1
    sparse: int = 0
    group_kernel_reuse: int = 0
    palette_block_size: int = 0
    bit_16: int = 1
    """Set in both words that were seen; no source says what it means."""

    def word(self, layout: RegisterLayout = DMA_H18G) -> int:
        return layout.pack(asdict(self))

    @classmethod
    def from_word(cls, word: int, layout: RegisterLayout = DMA_H18G) -> KernelDma:
        return cls(**layout.unpack(word))


def kernel_config(element: str, *, palette_bits: int = 0, sparse: bool = False, layout: RegisterLayout = H18G) -> KernelConfig:
    """The configuration of weights: of an element type, or of a palette with entries of that type.

    Where the register has `detect_zeros` it is set, except for weights that are sparse already: so it is in the words seen.
    """
    if element not in FORMAT_CODES:
        raise UnsupportedError(f"no code of the kernel format of '{element}' is known", code="E_REGISTER")
    return KernelConfig(
        format=FORMAT_CODES[element],
        palettized=int(palette_bits > 0),
        palettized_bits=palette_bits or NOT_PALETTIZED,
        sparse=int(sparse),
        detect_zeros=int("detect_zeros" in layout.fields and not sparse),
    )


_SEEN = (
    KernelConfig(2, detect_zeros=1),
    KernelConfig(2, sparse=1),
    KernelConfig(1, detect_zeros=1),
    KernelConfig(2, 1, 4, detect_zeros=1),
)


def word_fact(config: KernelConfig, layout: RegisterLayout) -> Fact[int]:
    """A word and how it is known: measured if it was seen in a compiled program, else inferred from the fields."""
    word = config.word(layout)
    if layout is H18G and config in _SEEN:
        return measured(word, layout.source, "1×1 convolution of 512 channels").named(layout.title)
    return inferred(word, layout.source, "from the fields of the register; no such program was seen").named(layout.title)
