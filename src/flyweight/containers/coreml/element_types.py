"""Element types as Core ML numbers them: in programs (MIL) and in weight files, which are two enumerations."""

from __future__ import annotations

from typing import NamedTuple

from flyweight.foundation.dtypes import DType


class ElementType(NamedTuple):
    label: str
    bits: int
    mil: int
    """Its number in a program."""
    blob: int | None = None
    """Its number in a weight file; None: values of it are always in the program."""
    dtype: DType | None = None
    """What it is here; None: it occurs only inside compressed weights."""


_TYPES = (
    ElementType("bool", 8, 1),
    ElementType("string", 0, 2),
    ElementType("f16", 16, 10, 1, DType.F16),
    ElementType("f32", 32, 11, 2, DType.F32),
    ElementType("f64", 64, 12),
    ElementType("bf16", 16, 13, 5, DType.BF16),
    ElementType("i8", 8, 21, 4, DType.I8),
    ElementType("i16", 16, 22, 6, DType.I16),
    ElementType("i32", 32, 23, 14, DType.I32),
    ElementType("i64", 64, 24),
    ElementType("i4", 4, 25, 8, DType.I4),
    ElementType("u8", 8, 31, 3, DType.U8),
    ElementType("u16", 16, 32, 7, DType.U16),
    ElementType("u32", 32, 33, 15, DType.U32),
    ElementType("u64", 64, 34),
    ElementType("u4", 4, 35, 11, DType.U4),
    ElementType("u2", 2, 36, 10),
    ElementType("u1", 1, 37, 9),
    ElementType("u6", 6, 38, 13),
    ElementType("u3", 3, 39, 12),
    ElementType("f8_e4m3", 8, 40, 16, DType.F8_E4M3),
    ElementType("f8_e5m2", 8, 41, 17, DType.F8_E5M2),
)
TYPES = {kind.label: kind for kind in _TYPES}
OF_PROGRAM = {kind.mil: kind for kind in _TYPES}
OF_BLOB = {kind.blob: kind for kind in _TYPES if kind.blob is not None}
PLAIN = {kind.dtype: kind for kind in _TYPES if kind.dtype is not None}
"""What a constant that is not compressed may be, by our element type."""


def nbytes(kind: ElementType, count: int) -> int:
    """Values narrower than a byte are one bit stream, the first in the low bits."""
    return (count * kind.bits + 7) // 8
