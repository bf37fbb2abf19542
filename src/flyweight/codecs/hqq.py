"""`hqq`: integers with a scale and a zero per group, as HQQ stores them.

The flattened tensor of n elements is seen as a matrix of N = n / group groups:

    axis 0   group rows, N columns: a group is a column, the elements c, c + N, c + 2·N …
    axis 1   N rows, group columns: a group is a row, of neighbours

    w = scale · (q − zero), scale and zero of the group, of the type `scale`

    codes    u8   (rows · bits / 8, columns)   1, 2, 4, 8 bits: 8 / bits runs of rows, stacked; the first in the high bits
             i32  (⌈rows / 10⌉, columns)       3 bits: ten runs at bits 27, 24 … 0; rows that the matrix does not have are zero
    scale         (1, N) or (N, 1)
    zero          (1, N) or (N, 1)

Codes far apart share a byte, so rows of the tensor cannot be cut out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs.affine import Affine
from flyweight.codecs.casts import cast_runs_into
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.lines import Lines, Zeros
from flyweight.codecs.value_checks import FLOATS, require_f32, require_integers, require_one_of
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
_RUN = 1 << 18  # values decoded at a time


@dataclass(frozen=True)
class Hqq(Codec):
    bits: int = 4
    group: int = 64
    scale: str = "f32"
    axis: int = 0

    name = "hqq"
    rounds = True
    quantizer: ClassVar[str] = "hqq"
    copies_if_whole = 4

    def __post_init__(self) -> None:
        require_one_of(self, bits=_STORED, scale=FLOATS, axis=(0, 1))
        require_integers(self, "group", least=1)
        if self.axis == 0 and not self._whole_bytes(self.group):
            raise ValueError(f"a group of {self.group} codes of {self.bits} bits is not a whole number of bytes")

    @cached_property
    def affine(self) -> Affine:
        """The same arithmetic, a group to a row."""
        return Affine(self.bits, 0, "scale_zero", self.scale)

    def _whole_bytes(self, rows: int) -> bool:
        """Whether the runs of so many rows are equally long, as those of u8 must be."""
        return self.bits == 3 or rows * self.bits % 8 == 0

    def _shape(self, spec: TensorSpec) -> tuple[int, int]:
        require_f32(self, spec)
        count = spec.size // self.group
        if spec.size % self.group or (self.axis == 1 and not self._whole_bytes(count)):
            bytes_too = "" if self.axis == 0 else ", so many that their codes fill bytes"
            raise UnsupportedError(f"hqq needs whole groups of {self.group} elements{bytes_too}, not {spec}", code="E_GROUP")
        return (self.group, count) if self.axis == 0 else (count, self.group)

    def layout(self, spec: TensorSpec) -> Layout:
        (word, shifts), (rows, columns) = _STORED[self.bits], self._shape(spec)
        each = TensorSpec((1, columns) if self.axis == 0 else (rows, 1), FLOATS[self.scale])
        return {"codes": TensorSpec((-(-rows // len(shifts)), columns), word), "scale": each, "zero": each}

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        cast_runs_into(self.decoded_runs(spec, parts), out)

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        """Some rows of the matrix after the other."""
        words, (rows, columns) = parts["codes"], self._shape(spec)
        scale, zero = (np.asarray(parts[name], np.float32) for name in ("scale", "zero"))
        step = max(_RUN // max(columns, 1), 1)
        for run, shift in enumerate(_STORED[self.bits][1]):
            for at in range(0, len(words), step):
                first = run * len(words) + at
                some = words[at : at + step][: max(rows - first, 0)]
                own = slice(first, first + len(some)) if self.axis == 1 else slice(None)
                values = (some >> shift & self.affine.levels).astype(np.float32)
                with np.errstate(all="ignore"):
                    values -= zero[own]
                    values *= scale[own]
                yield values.reshape(-1)

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        """Where every row of groups is whole rows of the tensor, so that rows N / columns apart share scales and zeros."""
        if self.axis or self.bits not in (4, 8) or self.group % 8 or spec.rows % self.group:
            return None
        words, groups = (spec.rows * self.bits // 8, spec.columns), (spec.rows // self.group, spec.columns)
        return kernels.matrix(
            f"hqq{self.bits}",
            codes=parts["codes"].reshape(words),
            scale=parts["scale"].reshape(groups),
            zero=parts["zero"].reshape(groups),
        )

    # The lines its codes lie on

    has_lines = True

    @property
    def tied(self) -> int:
        return self.group if self.axis == 0 else 1

    def alone(self, spec: TensorSpec) -> int:
        """Where groups are of one row; or, on axis 0, of one column."""
        if len(spec.shape) != 2 or not spec.size:
            return 0
        if self.axis == 0:
            return 0 if spec.rows % self.group else 1
        return 0 if spec.columns % self.group else self.group

    def lines(self, spec: TensorSpec, parts: Parts) -> Zeros:
        scale, zero = (self._of_rows(spec, np.asarray(parts[name], np.float32)) for name in ("scale", "zero"))
        levels = np.arange(self.affine.levels + 1, dtype=np.float32)[None]
        group = 1 if self.axis == 0 else self.group
        dtype = FLOATS[self.scale]
        return Zeros(levels, group, scale, -scale * zero, dtype, True, zeros=dtype, tied=self.tied)

    def _of_rows(self, spec: TensorSpec, numbers: Array) -> Array:
        """A number for each group as (groups, rows) of lines: on axis 0 rows repeat those of the first N / columns."""
        if self.axis == 1:
            return np.ascontiguousarray(numbers.reshape(spec.rows, -1).T)
        return np.tile(np.ascontiguousarray(numbers.reshape(-1, spec.columns).T), self.group)

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        first = slice(None) if self.axis == 1 else slice(spec.rows // self.group)
        scale, bias = (np.ascontiguousarray(part[:, first].T).reshape(1, -1) for part in (lines.scale, lines.bias))
        with np.errstate(all="ignore"):
            zero = np.divide(-bias, scale, out=np.zeros_like(scale), where=scale != 0)
        return self.store(self.groups(codes), *self.affine.representable(scale, zero))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        rows = np.ascontiguousarray(self.finite_groups(spec, array).T)
        scale, zero = self.affine.representable(*self.affine.span_of(rows))
        codes = self.affine.nearest_codes(rows, scale, zero)
        return self.store(codes.T, scale.reshape(1, -1), zero.reshape(1, -1))

    def finite_groups(self, spec: TensorSpec, array: Array) -> Array:
        """The tensor as f32 with a group to a column, (group, N), all finite."""
        self._shape(spec)  # refuses what cannot be stored
        return self.groups(self.affine.finite_rows(spec, array))

    def groups(self, array: Array) -> Array:
        """Elements with a group to a column, (group, N)."""
        flat = array.reshape(-1)
        return flat.reshape(self.group, -1) if self.axis == 0 else np.ascontiguousarray(flat.reshape(-1, self.group).T)

    def store(self, codes: Array, scale: Array, zero: Array) -> Parts:
        """The parts for codes (group, N), scale and zero (1, N)."""
        if self.axis == 1:
            codes, scale, zero = codes.T, scale.T, zero.T
        word, shifts = _STORED[self.bits]
        words = np.zeros((-(-len(codes) // len(shifts)), codes.shape[1]), word.numpy)
        for run, shift in enumerate(shifts):
            some = codes[run * len(words) : (run + 1) * len(words)]
            words[: len(some)] |= some.astype(word.numpy) << shift
        return {"codes": words, "scale": np.ascontiguousarray(scale), "zero": np.ascontiguousarray(zero)}
