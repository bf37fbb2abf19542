"""`sparse`: the positions of nonzero values, and those values in order, stored by an inner codec.

    mask      one bit per value, low bits first, rows padded to whole bytes
    stream    the same without padding: one stream of bits over the whole tensor
    indices   ascending places in the flattened tensor

The `stored` values are a vector to the inner codec: plain (`raw`, exact: a word counts as zero only if all its bits are),
coded exactly (`lossless`), or quantized. docs/formats/sparse.md has the layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.outer import EncodeInner, OuterCodec
from flyweight.codecs.value_checks import require_integers, require_marks, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_FORMS = ("mask", "stream", "indices")
_INDEX = {"u32": DType.U32, "i64": DType.I64}
# Indices say nothing of zeros, so a file of a few bytes could ask for any amount of memory: beyond 16 Mi values they
# must name one in 1024.
_FREE_SIZE, _MAX_SPREAD = 1 << 24, 1024


@dataclass(frozen=True)
class Sparse(OuterCodec):
    form: str = "mask"
    stored: int = 0
    index: str = "u32"

    name = "sparse"
    per_tensor = frozenset({"stored"})
    needs_fit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, form=_FORMS, index=_INDEX)
        require_integers(self, "stored", most=2**63 - 1)

    def inner_spec(self, spec: TensorSpec) -> TensorSpec:
        return TensorSpec((self.stored,), spec.dtype)

    def layout(self, spec: TensorSpec) -> Layout:
        _require_words(spec)
        if self.stored > spec.size or (self.form == "indices" and self.index == "u32" and spec.size > 2**32):
            raise UnsupportedError(f"{self.stored} values with {self.index} positions cannot describe {spec}", code="E_SPEC")
        if self.form == "indices":
            if spec.size > _FREE_SIZE + _MAX_SPREAD * self.stored:
                raise UnsupportedError(f"{spec} is too large for {self.stored} indices", code="E_SPEC", hint="use a mask")
            return {"indices": TensorSpec((self.stored,), _INDEX[self.index])} | dict(self.inner_layout(spec))
        shape = (-(-spec.size // 8),) if self.form == "stream" else (*spec.shape[:-1], -(-spec.columns // 8))
        return {"mask": TensorSpec(shape, DType.U8)} | dict(self.inner_layout(spec))

    def _masked_rows(self, spec: TensorSpec) -> tuple[int, int]:
        """Rows and columns as the mask has them: a stream is the mask of one row."""
        return (1, spec.size) if self.form == "stream" else (spec.rows, spec.columns)

    # Values ↔ parts

    def fit(self, spec: TensorSpec, array: Array) -> Codec:
        _require_words(spec)
        values = self._gathered(spec, array)[1]
        inner = self.inner_codec.fit(TensorSpec(values.shape, spec.dtype), values)
        return replace(self.around(inner), stored=values.size)

    def encode_around(self, spec: TensorSpec, array: Array, encode_inner: EncodeInner) -> Parts:
        """UnsupportedError if these are not the values the codec was fitted to."""
        layout = self.layout(spec)
        mask, values = self._gathered(spec, array)
        if values.size != self.stored:
            raise UnsupportedError(f"{self.spec} was fitted to other values", code="E_FIT", hint="fit the codec first")
        if self.form == "indices":
            indices = np.empty((1, self.stored), _INDEX[self.index].numpy)
            kernels.places(mask, spec.columns, indices)
            place = {"indices": indices[0]}
        else:
            place = {"mask": mask.reshape(layout["mask"].shape)}
        return place | dict(self.under_prefix(encode_inner(self.inner_spec(spec), values)))

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """MalformedError if the places are not `stored` ascending ones inside the tensor."""
        self.layout(spec)
        word = np.dtype(f"<u{spec.dtype.itemsize}")
        values = np.ascontiguousarray(self.inner_codec.decode(self.inner_spec(spec), self.inner_parts(parts))).view(word)
        target = out.reshape(-1).view(word)
        if self.form == "indices":
            target[...] = 0
            target[_places(parts["indices"], spec.size)] = values
            return
        rows, columns = self._masked_rows(spec)
        mask = np.ascontiguousarray(parts["mask"]).reshape(rows, -(-columns // 8))
        require_marks("mask", mask, columns, self.stored)
        kernels.expand(mask, np.require(values, word, "A").reshape(1, -1), target.reshape(rows, columns))

    def _gathered(self, spec: TensorSpec, array: Array) -> tuple[Array, Array]:
        """Which values are stored (by their bits if every bit must come back, else by their value), and those values."""
        bits = spec.dtype.bits
        keep = (1 << bits) - 1 if self.exact or spec.dtype.kind != "f" else (1 << bits - 1) - 1  # the sign of a zero is none
        rows, columns = self._masked_rows(spec)
        words = _flat(spec, array).view(f"<u{spec.dtype.itemsize}").reshape(rows, columns)
        mask = np.empty((rows, -(-columns // 8)), np.uint8)
        kernels.mark(words, keep, mask)
        values = np.empty((1, int(np.bitwise_count(mask).sum(dtype=np.int64))), words.dtype)
        kernels.gather(mask, words, values)
        return mask, values[0].view(spec.dtype.numpy)


def _require_words(spec: TensorSpec) -> None:
    if spec.dtype.bits not in (8, 16, 32) or spec.dtype is DType.BOOL:
        raise UnsupportedError(f"sparse stores values of 8, 16 or 32 bits, not {spec.dtype}", code="E_SPEC")


def _flat(spec: TensorSpec, array: Array) -> Array:
    return astype(np.asarray(array), spec.dtype.numpy).reshape(-1)


def _places(indices: Array, size: int) -> Array:
    if indices.size and (int(indices[0]) < 0 or int(indices[-1]) >= size or not (indices[1:] > indices[:-1]).all()):
        raise MalformedError("the indices are not ascending positions in the tensor", code="E_PART_VALUES")
    return indices
