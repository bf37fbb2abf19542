"""`hqq`: integers with a scale and a zero for every group of elements that lie far apart, as HQQ stores them.

The flattened tensor of n elements is seen as a matrix of `group` rows and N = n / group columns; a group is a column,
the elements c, c + N, c + 2·N …

    w = scale[c] · (q − zero[c])

    codes    u8   (group · bits / 8, N)   halves-high down each column: the first rows in the high bits
    scale    f32  (1, N)
    zero     f32  (1, N)

That is the affine codec on the matrix, with groups down whole columns. Groups cross rows, so rows cannot be cut out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flyweight.codecs.affine import Affine
from flyweight.codecs.base import Array, Codec, Parts
from flyweight.dtypes import DType
from flyweight.errors import UnsupportedError
from flyweight.tensor import Layout, TensorSpec

__all__ = ["Hqq"]


@dataclass(frozen=True)
class Hqq(Codec):
    bits: int = 4
    group: int = 64

    name = "hqq"

    def __post_init__(self) -> None:
        if type(self.group) is not int or not 1 <= self.group < 2**31:
            raise ValueError(f"group must be a count from 1 to 2^31 − 1, not {self.group!r}")
        if self.group * self.affine.bits % 8:
            raise ValueError(f"a group of {self.group} codes of {self.bits} bits is not whole bytes")

    @cached_property
    def affine(self) -> Affine:
        """The same codec on the matrix."""
        return Affine(self.bits, 0, "scale_zero", "f32", "halves-high", "u8", axis=0)

    def matrix(self, spec: TensorSpec) -> TensorSpec:
        if not spec.shape or spec.size % self.group:
            raise UnsupportedError(f"hqq stores whole groups of {self.group} elements, not {spec}", code="E_GROUP")
        return TensorSpec((self.group, spec.size // self.group), spec.dtype)

    def layout(self, spec: TensorSpec) -> Layout:
        return self.affine.layout(self.matrix(spec))

    def decode(self, spec: TensorSpec, parts: Parts, out: Array | None = None) -> Array:
        values = np.empty(spec.shape, np.float32) if out is None else out
        matrix = self.matrix(spec)
        self.affine.decode(matrix, parts, values.reshape(matrix.shape))
        return values

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        matrix = self.matrix(TensorSpec(spec.shape, DType.F32))
        return self.affine.encode(matrix, np.ascontiguousarray(array).reshape(matrix.shape))
