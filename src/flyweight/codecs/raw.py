"""`raw`: the elements themselves, little-endian, row-major.

One part, `data`. Elements narrower than a byte are packed into bytes, first element in the low
bits, over the whole flattened tensor.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs import packing
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

_MULTIPLIED = (DType.F32, DType.F16, DType.BF16)


class Raw(Codec):
    name = "raw"
    exact: ClassVar[bool] = True

    def layout(self, spec: TensorSpec) -> Layout:
        return {"data": spec}

    def decoded_dtype(self, dtype: DType) -> DType:
        return dtype

    def decode(self, spec: TensorSpec, parts: Parts, out: Array | None = None) -> Array:
        """As every codec, but the stored array itself where nobody brings another."""
        return self._values(spec, parts) if out is None else super().decode(spec, parts, out)

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        out[...] = self._values(spec, parts)

    def _values(self, spec: TensorSpec, parts: Parts) -> Array:
        data = parts["data"]
        if spec.dtype.bits % 8:
            codes = packing.unpack("little", data.reshape(1, -1), spec.dtype.bits, spec.size)
            data = codes.view(spec.dtype.numpy)
        elif spec.dtype is DType.BOOL:
            if data.size and data.max() > 1:
                raise MalformedError("a bool is neither 0 nor 1", code="E_BOOL")
            data = data.view(np.bool_)
        return data.reshape(spec.shape)

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        if spec.dtype.bits % 8:
            raise UnsupportedError(f"no encoder for packed {spec.dtype}", code="E_NO_ENCODER")
        wanted = astype(np.asarray(array), spec.dtype.numpy)
        return {"data": wanted.view(spec.dtype.storage).reshape(spec.shape)}

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        return kernels.matrix(spec.dtype.label, weights=parts["data"]) if spec.dtype in _MULTIPLIED else None

    def masked_product(self, spec: TensorSpec, parts: Parts, block: int, mask: Array) -> kernels.Matrix | None:
        if spec.dtype not in _MULTIPLIED:
            return None
        return kernels.matrix(spec.dtype.label, weights=parts["data"], block=block, mask=mask)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        if not spec.dtype.is_float or spec.dtype.bits % 8:
            return None
        return super().check_values(spec, parts)
