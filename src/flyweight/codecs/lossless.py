"""`lossless`: floats without loss, bf16 in about 0.70 of its size, by a fixed-length code for the exponent.

    value    sign · exponent · mantissa
    stored   a 3-bit code for the exponent (1–7: base … base + 6; 0: an escape), sign and mantissa as they are,
             and the exponents of the escapes in order

With `stored` ≥ 0 only that many words, those that are not all zero bits, are stored so, behind a bitmap of where they
are. `base`, `stored` and `escapes` come from the values (`fit`). docs/formats/lossless.md has the layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import complaint_about_values, require_integers, require_marks
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec
from flyweight.kernels.coding.exponents import CODED, GROUP, RUN

_U64, _U32, _U8 = (np.dtype(kind) for kind in ("<u8", "<u4", "u1"))


@dataclass(frozen=True)
class Lossless(Codec):
    base: int = 0
    escapes: int = 0
    stored: int = -1

    name = "lossless"
    per_tensor = frozenset({"base", "escapes", "stored"})
    exact: ClassVar[bool] = True
    needs_fit: ClassVar[bool] = True
    decodes_any_bytes = False

    def __post_init__(self) -> None:
        require_integers(self, "base", most=256 - CODED)
        require_integers(self, "escapes", most=2**32 - 1)
        require_integers(self, "stored", least=-1, most=2**63 - 1)

    def layout(self, spec: TensorSpec) -> Layout:
        count = self._count(spec)
        word = kernels.WORDS[spec.dtype.label]
        groups, runs = -(-count // GROUP), -(-count // RUN)
        parts = {
            "planes": TensorSpec((groups, word.planes), DType.U64),
            "low": TensorSpec((groups, GROUP * word.low), DType.U8),
            "starts": TensorSpec((runs,), DType.U32),
            "escapes": TensorSpec((self.escapes,), DType.U8),
        }
        return parts if self.stored < 0 else {"bitmap": TensorSpec(_bitmap_shape(spec), DType.U64)} | parts

    def _count(self, spec: TensorSpec) -> int:
        """How many words are stored; UnsupportedError if the parameters do not fit the tensor."""
        if spec.dtype.label not in kernels.WORDS:
            raise UnsupportedError(f"lossless stores bf16, f16 and f32, not {spec.dtype}", code="E_SPEC")
        count = spec.size if self.stored < 0 else self.stored
        last = (1 << kernels.WORDS[spec.dtype.label].exponent) - CODED
        if count > spec.size or self.escapes > count or self.base > last:
            raise UnsupportedError(f"the parameters of {self.spec} do not match {spec}", code="E_SPEC")
        return count

    def decoded_dtype(self, dtype: DType) -> DType:
        return dtype

    # Values ↔ parts

    def fit(self, spec: TensorSpec, array: Array) -> Codec:
        """The seven exponents that cover most, and a bitmap if it saves more than it takes."""
        whole = replace(self, base=0, escapes=0, stored=-1)
        whole.layout(spec)
        words = _words(spec, array)
        counts = np.zeros((1, 256), np.uint64)
        getattr(kernels, f"lossless_count_{spec.dtype.label}")(words, counts)
        zeros = words.size - int(np.count_nonzero(words))
        every, nonzero = counts[0].astype(np.int64), counts[0].astype(np.int64)
        nonzero[0] -= zeros
        choices = [_window(spec, every, -1), _window(spec, nonzero, words.size - zeros)]
        return min(choices, key=lambda codec: sum(part.nbytes for part in codec.layout(spec).values()))

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """UnsupportedError if these are not the values the codec was fitted to."""
        parts = {name: np.zeros(part.shape, part.dtype.numpy) for name, part in self.layout(spec).items()}
        words = _words(spec, array)
        if self.stored >= 0:
            matrix, bits = words.reshape(spec.rows, spec.columns), spec.dtype.bits
            mask = parts["bitmap"].view(np.uint8).reshape(spec.rows, _row_bytes(spec))
            kernels.mark(matrix, (1 << bits) - 1, mask)
            self._require(int(np.bitwise_count(parts["bitmap"]).sum(dtype=np.int64)) == self.stored)
            words = np.empty((1, self.stored), words.dtype)
            kernels.gather(mask, matrix, words)
        counts = np.zeros((1, len(parts["starts"])), np.uint32)
        kernel = getattr(kernels, f"lossless_encode_{spec.dtype.label}")
        kernel(words, self.base, parts["planes"], parts["low"], parts["escapes"].reshape(1, -1), counts)
        ends = np.cumsum(counts[0], dtype=np.uint64)
        self._require(int(ends[-1] if len(ends) else 0) == self.escapes)
        parts["starts"][...] = ends - counts[0]
        return parts

    def _require(self, fitted: bool) -> None:
        if not fitted:
            raise UnsupportedError(f"{self.spec} was fitted to other values", code="E_FIT", hint="fit the codec first")

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """MalformedError if the parts do not agree on how many words and escapes there are."""
        count, label = self._count(spec), spec.dtype.label
        target = out.reshape(-1).view(kernels.WORDS[label].dtype)
        words = target if self.stored < 0 else np.empty(count, target.dtype)
        starts = _plain(parts["starts"], _U32).reshape(1, -1)
        counts = np.zeros(starts.shape, np.uint32)
        planes, low, escapes = (_plain(parts[name], kind) for name, kind in (("planes", _U64), ("low", _U8), ("escapes", _U8)))
        kernel = getattr(kernels, f"lossless_decode_{label}")
        kernel(planes, low, starts, escapes.reshape(1, -1), self.base, counts, words.reshape(1, -1))
        ends = np.cumsum(counts[0], dtype=np.uint64)
        if int(ends[-1] if len(ends) else 0) != self.escapes or not np.array_equal(ends - counts[0], starts[0]):
            raise MalformedError("the number of escapes does not match the codes", code="E_PART_VALUES")
        if self.stored >= 0:
            mask = _plain(parts["bitmap"], _U64).view(np.uint8).reshape(spec.rows, _row_bytes(spec))
            require_marks("bitmap", mask, spec.columns, self.stored)
            kernels.expand(mask, words.reshape(1, -1), target.reshape(spec.rows, spec.columns))

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        return complaint_about_values(self, spec, parts)


def _bitmap_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Bits of a row, padded to whole words."""
    return (*spec.shape[:-1], -(-spec.columns // 64))


def _row_bytes(spec: TensorSpec) -> int:
    return 8 * _bitmap_shape(spec)[-1]


def _window(spec: TensorSpec, counts: Array, stored: int) -> Lossless:
    """The codec for exponents that occur so often; of equally good windows the lowest."""
    last = (1 << kernels.WORDS[spec.dtype.label].exponent) - CODED
    covered = np.convolve(counts, np.ones(CODED, np.int64), "valid")[: last + 1]
    base = int(covered.argmax())
    escapes = int(counts.sum() - covered[base])
    if escapes >= 2**32:
        raise UnsupportedError(f"{escapes} values of {spec} need an escape, too many to count in u32", code="E_SPEC")
    return Lossless(base, escapes, stored)


def _words(spec: TensorSpec, array: Array) -> Array:
    """The bits of a tensor, (1, size)."""
    return astype(np.asarray(array), spec.dtype.numpy).reshape(1, spec.size).view(kernels.WORDS[spec.dtype.label].dtype)


def _plain(array: Array, dtype: np.dtype[np.generic]) -> Array:
    return np.require(array, dtype, ["C", "A"])
