"""`hqq`: integers with a scale and a zero per group, where a group is elements far apart, as HQQ stores them.

The flattened tensor of n elements is seen as a matrix of `group` rows and N = n / group columns; a group is a column,
the elements c, c + N, c + 2·N …

    w = scale[c] · (q − zero[c])

    codes    u8   (group · bits / 8, N)       1, 2, 4, 8 bits: 8 / bits runs of rows, stacked; the first in the high bits
             i32  (⌈group / 10⌉, N)           3 bits: ten runs at bits 27, 24 … 0; rows beyond the group are zero
    scale    f32  (1, N)
    zero     f32  (1, N)

Groups cross rows, so rows cannot be cut out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from flyweight.codecs.affine import Affine
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import require_f32, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_STORED: dict[int, tuple[DType, tuple[int, ...]]] = {
    # the word that holds codes, and where in it each run lies
    1: (DType.U8, (7, 6, 5, 4, 3, 2, 1, 0)),
    2: (DType.U8, (6, 4, 2, 0)),
    3: (DType.I32, (27, 24, 21, 18, 15, 12, 9, 6, 3, 0)),
    4: (DType.U8, (4, 0)),
    8: (DType.U8, (0,)),
}


@dataclass(frozen=True)
class Hqq(Codec):
    bits: int = 4
    group: int = 64

    name = "hqq"
    rounds = True
    quantizer: ClassVar[str] = "hqq"
    copies_if_whole = 4

    def __post_init__(self) -> None:
        require_one_of(self, bits=_STORED)
        require_integers(self, "group", least=1)
        if self.bits != 3 and self.group * self.bits % 8:
            raise ValueError(f"a group of {self.group} codes of {self.bits} bits is not a whole number of bytes")

    @cached_property
    def affine(self) -> Affine:
        """The same arithmetic, a group to a row."""
        return Affine(self.bits, 0, "scale_zero")

    def _shape(self, spec: TensorSpec) -> tuple[int, int]:
        require_f32(self, spec)
        if spec.size % self.group:
            raise UnsupportedError(f"hqq needs a multiple of {self.group} elements, not {spec}", code="E_GROUP")
        return self.group, spec.size // self.group

    def layout(self, spec: TensorSpec) -> Layout:
        (word, shifts), (_, columns) = _STORED[self.bits], self._shape(spec)
        each = TensorSpec((1, columns), DType.F32)
        return {"codes": TensorSpec((-(-self.group // len(shifts)), columns), word), "scale": each, "zero": each}

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        for row, run in zip(out.reshape(self._shape(spec)), self.decoded_runs(spec, parts), strict=True):
            row[...] = astype(run, row.dtype)

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        """The rows of the matrix."""
        words, shifts = parts["codes"], _STORED[self.bits][1]
        for row in range(self.group):
            run, at = divmod(row, len(words))
            values = (words[at] >> shifts[run] & self.affine.levels).astype(np.float32)
            with np.errstate(all="ignore"):
                values -= parts["zero"][0]
                values *= parts["scale"][0]
            yield values

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        rows = np.ascontiguousarray(self.finite_matrix(spec, array).T)
        scale, zero = self.affine.representable(*self.affine.span_of(rows))
        codes = self.affine.nearest_codes(rows, scale, zero)
        return self.store(codes.T, scale.reshape(1, -1), zero.reshape(1, -1))

    def finite_matrix(self, spec: TensorSpec, array: Array) -> Array:
        """The tensor as f32 (group, N), all finite."""
        self._shape(spec)
        return self.affine.finite_rows(spec, array).reshape(self._shape(spec))

    def store(self, codes: Array, scale: Array, zero: Array) -> Parts:
        """The parts for codes (group, N), scale and zero (1, N)."""
        word, shifts = _STORED[self.bits]
        words = np.zeros((-(-self.group // len(shifts)), codes.shape[1]), word.numpy)
        for row, line in enumerate(codes):
            run, at = divmod(row, len(words))
            words[at] |= line.astype(word.numpy) << shifts[run]
        return {"codes": words, "scale": scale, "zero": zero}
