"""`masked`: the values of an inner codec, and a mask of which blocks of every row are not all zero.

    mask      u8   a bit for every `block` weights of a row, low bits first, 1 = kept; rows padded to whole bytes
    inner.*        the parts of the inner codec for the whole tensor, zeros in the blocks that are dropped

The mask adds nothing to the values: whoever ignores it decodes the same, a product that reads it skips what is dropped.
docs/formats/masked.md has the layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.outer import EncodeInner, OuterCodec
from flyweight.codecs.value_checks import require_integers
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec


@dataclass(frozen=True)
class Masked(OuterCodec):
    block: int = 64

    name = "masked"
    drops_blocks = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integers(self, "block", least=1)

    @property
    def needs_fit(self) -> bool:
        return self.inner_codec.needs_fit

    @property
    def masked_together(self) -> int:
        return self.inner_codec.masked_together

    def inner_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec

    def layout(self, spec: TensorSpec) -> Layout:
        if spec.dtype.bits not in (8, 16, 32) or spec.dtype is DType.BOOL or not spec.shape:
            raise UnsupportedError(f"masked stores values of 8, 16 or 32 bits, of rank 1 or more, not {spec}", code="E_SPEC")
        together = self.masked_together
        if not together or self.block % together:
            raise UnsupportedError(
                f"a block of {self.block} ends inside {together or spec.size} weights that share a scale",
                code="E_SPEC",
                hint="make the block a multiple of the length",
            )
        mask = (*spec.shape[:-1], -(-self._blocks(spec) // 8))
        return dict(self.inner_layout(spec)) | {"mask": TensorSpec(mask, DType.U8)}

    def _blocks(self, spec: TensorSpec) -> int:
        return -(-spec.columns // self.block)

    def fit(self, spec: TensorSpec, array: Array) -> Codec:
        return self.around(self.inner_codec.fit(self.inner_spec(spec), array))

    def encode_around(self, spec: TensorSpec, array: Array, encode_inner: EncodeInner) -> Parts:
        self.layout(spec)
        return self.with_mask(spec, array, encode_inner(self.inner_spec(spec), array))

    def with_mask(self, spec: TensorSpec, array: Array, inner: Parts) -> Parts:
        """The parts for an array and those of the inner codec; UnsupportedError where these lose zeros that a mask drops."""
        kept = self._occupied(spec, astype(np.asarray(array), spec.dtype.numpy))
        mask = np.packbits(kept, axis=1, bitorder="little").reshape(self.layout(spec)["mask"].shape)
        if not (self.exact or kept.all()) and (self._occupied(spec, self.inner_codec.decode(spec, inner)) & ~kept).any():
            raise UnsupportedError(
                f"{self.inner_codec.spec} does not decode zeros in blocks of {self.block} to zero",
                code="E_SPEC",
                hint="make the block a multiple of the group length",
            )
        return {**self.under_prefix(inner), "mask": mask}

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """MalformedError if the mask drops weights that are not zero, or has bits behind the end of a row."""
        self.layout(spec)
        self.inner_codec.decode(spec, self.inner_parts(parts), out)
        mask = np.ascontiguousarray(parts["mask"]).reshape(spec.rows, -(-self._blocks(spec) // 8))
        kept = np.unpackbits(mask, axis=1, bitorder="little").view(np.bool_)
        if kept[:, self._blocks(spec) :].any():
            raise MalformedError("the mask has bits after the end of a row", code="E_PART_VALUES")
        kept = kept[:, : self._blocks(spec)]
        if not kept.all():
            lying = np.argwhere(self._occupied(spec, out) & ~kept)
            if lying.size:
                row, block = lying[0]
                raise MalformedError(f"the mask drops block {block} of row {row}, which is not zero", code="E_PART_VALUES")

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        inner = self.inner_parts(parts)
        if self.block % 32:
            return self.inner_codec.product(spec, inner)
        return self.inner_codec.masked_product(spec, inner, self.block, parts["mask"])

    def _occupied(self, spec: TensorSpec, values: Array) -> Array:
        """Which blocks hold a value that is not zero, (rows, blocks)."""
        bits = spec.dtype.bits
        every = (1 << bits) - 1 if spec.dtype.kind != "f" else (1 << bits - 1) - 1  # the sign of a zero is none
        words = np.require(values, requirements=["C", "A"]).view(f"<u{bits // 8}").reshape(spec.rows, spec.columns)
        marks = np.empty((spec.rows, -(-spec.columns // 8)), np.uint8)
        kernels.mark(words, every, marks)
        step = self.block // 8
        if self.block % 8:
            marks, step = np.unpackbits(marks, axis=1, count=spec.columns, bitorder="little"), self.block
        occupied: Array = np.bitwise_or.reduceat(marks, np.arange(0, marks.shape[1], step), axis=1) != 0
        return occupied
