"""The closed set of element types a weight can have.

A name says kind and width: `f16`, `bf16`, `f8_e4m3`, `u4`. Types narrower than a byte have
no array type of their own; they live packed in bytes (see `codecs.packing`). NumPy is imported only
when an array is really made, and ml_dtypes when NumPy lacks its type, so that starting is fast.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from flyweight.foundation.errors import UnsupportedError, nearest

if TYPE_CHECKING:
    import numpy as np


class DType(Enum):
    """An element type: its name, its width in bits, its kind (f float, i signed, u unsigned, b bool, c complex)."""

    F64 = ("f64", 64, "f")
    F32 = ("f32", 32, "f")
    F16 = ("f16", 16, "f")
    BF16 = ("bf16", 16, "f")
    F8_E4M3 = ("f8_e4m3", 8, "f")
    F8_E5M2 = ("f8_e5m2", 8, "f")
    F8_E8M0 = ("f8_e8m0", 8, "f")
    F8_E4M3FNUZ = ("f8_e4m3fnuz", 8, "f")
    F8_E5M2FNUZ = ("f8_e5m2fnuz", 8, "f")
    F6_E2M3 = ("f6_e2m3", 6, "f")
    F6_E3M2 = ("f6_e3m2", 6, "f")
    F4_E2M1 = ("f4_e2m1", 4, "f")
    I64 = ("i64", 64, "i")
    I32 = ("i32", 32, "i")
    I16 = ("i16", 16, "i")
    I8 = ("i8", 8, "i")
    I4 = ("i4", 4, "i")
    U64 = ("u64", 64, "u")
    U32 = ("u32", 32, "u")
    U16 = ("u16", 16, "u")
    U8 = ("u8", 8, "u")
    U4 = ("u4", 4, "u")
    BOOL = ("bool", 8, "b")
    C64 = ("c64", 64, "c")

    def __init__(self, label: str, bits: int, kind: str) -> None:
        self.label = label
        self.bits = bits
        self.kind = kind

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    @classmethod
    def parse(cls, label: str) -> DType:
        try:
            return _BY_LABEL[label]
        except KeyError:
            raise UnsupportedError(
                f"unknown element type '{label}'{nearest(label, _BY_LABEL)}",
                code="E_DTYPE",
                hint=f"known: {', '.join(_BY_LABEL)}",
            ) from None

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def itemsize(self) -> int:
        """Bytes per element; only for types of whole bytes."""
        if self.bits % 8:
            raise UnsupportedError(f"{self} is narrower than a byte and has no item size", code="E_DTYPE")
        return self.bits // 8

    def nbytes(self, count: int) -> int:
        """Bytes that `count` tightly packed elements occupy."""
        return (count * self.bits + 7) // 8

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        """The array type of decoded elements; types narrower than a byte take one byte each here."""
        import numpy

        if self is DType.BOOL:
            return numpy.dtype(numpy.bool_)
        if self.label not in _ML_DTYPES:
            return numpy.dtype(f"<{self.kind}{self.itemsize}")
        import ml_dtypes

        scalar: type[numpy.generic] = getattr(ml_dtypes, _ML_DTYPES[self.label])
        return numpy.dtype(scalar)

    @cached_property
    def storage(self) -> np.dtype[np.generic]:
        """The array type of stored elements: packed bytes for what is narrower than a byte, and for bool,
        whose bytes other than 0 and 1 must not reach NumPy unchecked."""
        import numpy

        return numpy.dtype(numpy.uint8) if self.bits % 8 or self is DType.BOOL else self.numpy


_ML_DTYPES = {
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e8m0": "float8_e8m0fnu",
    "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz",
    "f6_e2m3": "float6_e2m3fn",
    "f6_e3m2": "float6_e3m2fn",
    "f4_e2m1": "float4_e2m1fn",
    "i4": "int4",
    "u4": "uint4",
}
"""The types that NumPy lacks, by their names in ml_dtypes, which is imported for the first of them."""
_BY_LABEL = {dtype.label: dtype for dtype in DType}
