"""`sparse_codes`: an inner codec of which only some codes are stored; what the others stand for is zero.

    mask      u8   one bit per code of the whole tensor, low bits first: 1 = stored
    inner.*        the parts of the inner codec, its codes those that are stored, one after the other

Scales and tables belong to the same weights as in the inner codec: that is what `sparse`, whose inner codec has a vector of
values, cannot say. It is Core ML's `constexpr_lut_to_sparse` and `constexpr_sparse_blockwise_shift_scale`, made dense.
docs/formats/sparse-codes.md has the layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Filler, Parts, StoredCodes, column_weights
from flyweight.codecs.outer import EncodeInner, OuterCodec
from flyweight.codecs.value_checks import require_integers, require_marks
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import CodecSpec, Layout, TensorSpec

_BLOCKWISE = CodecSpec("blockwise")
_SLAB = 1 << 16
"""Values that are set to zero at a time."""


@dataclass(frozen=True)
class SparseCodes(OuterCodec):
    inner: CodecSpec = _BLOCKWISE
    stored: int = 0

    name = "sparse_codes"
    per_tensor = frozenset({"stored"})
    needs_fit: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    copies_if_whole = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integers(self, "stored", most=2**63 - 1)

    @property
    def value_dtype(self) -> DType | None:
        return self.inner_codec.value_dtype

    # Layout

    def inner_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec

    def _codes(self, spec: TensorSpec) -> StoredCodes:
        codes = self.inner_codec.stored_codes(spec)
        if codes is None:
            raise UnsupportedError(f"{self.inner_codec.name} has no stream of codes to leave some out", code="E_SPEC")
        if any(axis % max(count, 1) for axis, count in zip(spec.shape, codes.shape, strict=True)):
            raise UnsupportedError(f"{spec} is not a whole number of the vectors that codes stand for", code="E_SPEC")
        if self.stored > prod(codes.shape):
            raise UnsupportedError(f"{self.stored} codes are more than {spec} has", code="E_SPEC")
        return codes

    def layout(self, spec: TensorSpec) -> Layout:
        codes, inner = self._codes(spec), dict(self.inner_layout(spec))
        part = f"inner.{codes.part}"
        packed = TensorSpec((-(-self.stored * codes.bits // 8),), DType.U8)
        inner[part] = packed if codes.bits <= 8 else TensorSpec((self.stored,), inner[part].dtype)
        return {"mask": TensorSpec((-(-prod(codes.shape) // 8),), DType.U8), **inner}

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """MalformedError if the mask does not mark `stored` codes of the tensor, or bits behind the last code are set."""
        self.layout(spec)
        codes, mask = self._codes(spec), self._mask(spec, parts)
        self.inner_codec.decode(spec, self._dense(spec, parts), out)
        if codes.shape == spec.shape:
            _clear(out.reshape(-1), mask[0])
            return
        kept = np.unpackbits(mask[0], count=prod(codes.shape), bitorder="little").view(np.bool_).reshape(codes.shape)
        for axis, count in enumerate(codes.shape):
            kept = kept.repeat(spec.shape[axis] // count, axis)
        out[~kept] = 0

    def _mask(self, spec: TensorSpec, parts: Parts) -> Array:
        """(1, bytes), with as many bits as there are stored codes."""
        mask = np.require(parts["mask"], np.uint8, ["C", "A"]).reshape(1, -1)
        require_marks("mask", mask, prod(self._codes(spec).shape), self.stored)
        return mask

    def _dense(self, spec: TensorSpec, parts: Parts) -> Parts:
        """The inner codec's parts for the whole tensor, its codes 0 where none is stored."""
        codes, inner = self._codes(spec), dict(self.inner_parts(parts))
        want = self.inner_codec.layout(spec)[codes.part]
        given = np.require(inner[codes.part], requirements=["C", "A"]).reshape(1, -1)
        if codes.bits <= 8:
            unused = -self.stored * codes.bits % 8
            if unused and int(given[0, -1]) >> (8 - unused):
                raise MalformedError("the bits after the last code are not zero", code="E_PART_VALUES")
            given = packing.unpack("little", given, codes.bits, self.stored)
        words = given.view(f"<u{given.itemsize}")
        dense = np.empty((1, prod(codes.shape)), words.dtype)
        kernels.expand(self._mask(spec, parts), words, dense)
        if codes.bits <= 8:
            dense = packing.pack("little", dense, codes.bits)
        inner[codes.part] = dense.view(want.dtype.storage).reshape(want.shape)
        return inner

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        try:
            return self.inner_codec.check_values(spec, self._dense(spec, parts)) if spec.size else None
        except MalformedError as error:
            return error.message

    # Encoding

    def fit(self, spec: TensorSpec, array: Array) -> Codec:
        inner = self.inner_codec.fit(spec, array)
        mask = replace(self.around(inner), stored=0)._marks(spec, array)
        return replace(self.around(inner), stored=int(np.bitwise_count(mask).sum(dtype=np.int64)))

    def _marks(self, spec: TensorSpec, array: Array) -> Array:
        """A bit for every code of which a value is not zero, (1, bytes)."""
        codes = self._codes(spec)
        if codes.shape == spec.shape:
            words = astype(np.asarray(array), DType.F32.numpy).reshape(1, -1).view("<u4")
            mask = np.empty((1, -(-spec.size // 8)), np.uint8)
            kernels.mark(words, 0x7FFFFFFF, mask)  # the sign of a zero is none
            return mask
        kept = np.asarray(array).reshape(spec.shape) != 0
        for axis, count in enumerate(codes.shape):
            pairs = (*kept.shape[:axis], count, spec.shape[axis] // max(count, 1), *kept.shape[axis + 1 :])
            kept = kept.reshape(pairs).any(axis=axis + 1)
        return np.packbits(kept.reshape(1, -1), axis=1, bitorder="little")

    def encode_around(self, spec: TensorSpec, array: Array, encode_inner: EncodeInner) -> Parts:
        """UnsupportedError if these are not the values the codec was fitted to."""
        layout, codes, mask = self.layout(spec), self._codes(spec), self._marks(spec, array)
        if int(np.bitwise_count(mask).sum(dtype=np.int64)) != self.stored:
            raise UnsupportedError(f"{self.spec} was fitted to other values", code="E_FIT", hint="fit the codec first")
        if self.stored and self._is_one_block(spec):  # nothing shall be spent on zeros
            words = astype(np.asarray(array), DType.F32.numpy).reshape(1, -1).view("<u4")
            values = np.empty((1, self.stored), words.dtype)
            kernels.gather(mask, words, values)
            inner = dict(encode_inner(self._vector, values[0].view(DType.F32.numpy)))
        else:
            inner = dict(encode_inner(spec, array))
            inner[codes.part] = self._stored_of(codes, inner[codes.part], mask)
        parts = {"mask": mask[0], **self.under_prefix(inner)}
        return {name: parts[name].reshape(want.shape) for name, want in layout.items()}

    def _stored_of(self, codes: StoredCodes, dense: Array, mask: Array) -> Array:
        """Of all codes those that the mask keeps."""
        dense = dense.reshape(1, -1)
        if codes.bits <= 8:
            dense = packing.unpack("little", dense, codes.bits, prod(codes.shape))
        words = dense.view(f"<u{dense.itemsize}")
        kept = np.empty((1, self.stored), words.dtype)
        kernels.gather(mask, words, kept)
        return packing.pack("little", kept, codes.bits) if codes.bits <= 8 else kept.view(dense.dtype)

    @property
    def _vector(self) -> TensorSpec:
        return TensorSpec((self.stored,), DType.F32)

    def _is_one_block(self, spec: TensorSpec) -> bool:
        """Whether all weights share one scale or table, so that it may be that of the stored weights alone."""
        codes = self._codes(spec)
        try:
            of_vector = self.inner_codec.stored_codes(self._vector)
            of_stored, whole = self.inner_codec.layout(self._vector), self.inner_codec.layout(spec)
        except UnsupportedError:
            return False
        if codes.shape != spec.shape or of_vector is None or of_vector.shape != self._vector.shape:
            return False
        return all(of_stored[name].size == part.size for name, part in whole.items() if name != codes.part)

    def filled_by(self, filler: Filler, spec: TensorSpec, array: Array, inputs: InputStatistics | None = None) -> Parts:
        if inputs is not None and self._is_one_block(spec):
            column_weights(inputs.importance, spec)  # refuses what is none
            inputs = None  # the inner codec does not see these columns
        return super().filled_by(filler, spec, array, inputs)


def _clear(values: Array, mask: Array) -> None:
    """Zero where a mask, low bits first, has none."""
    words = values.view("<u4")
    for start in range(0, values.size, _SLAB):
        some = words[None, start : start + _SLAB]
        marks = mask[None, start // 8 : start // 8 + -(-some.size // 8)]
        kept = np.empty((1, int(np.bitwise_count(marks).sum(dtype=np.int64))), words.dtype)
        kernels.gather(marks, some, kept)
        kernels.expand(marks, kept, some)
