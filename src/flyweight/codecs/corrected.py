"""`corrected`: the values of an inner codec, plus a low-rank matrix, with outliers stored separately.

    w = inner + a₀·b₀ + … + a₍ᵣ₋₁₎·b₍ᵣ₋₁₎, added one by one, each step rounded to float32
    w[place] = value                        for the outliers

Encoding takes the `outliers` greatest magnitudes out first, quantizes the rest, and fits the low rank to what that lost.
docs/formats/corrected.md has the layout and what it gains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import Array, Parts
from flyweight.codecs.outer import EncodeInner, OuterCodec
from flyweight.codecs.value_checks import FLOATS, require_f32, require_finite, require_integers, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, Layout, TensorSpec

_SWEEPS = 6
AFFINE = CodecSpec("affine")


@dataclass(frozen=True)
class Corrected(OuterCodec):
    inner: CodecSpec = AFFINE
    rank: int = 16
    outliers: int = 0
    factor: str = "f16"

    name = "corrected"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_integers(self, "rank", "outliers")
        require_one_of(self, factor=FLOATS)
        if self.inner_codec.needs_fit:
            raise ValueError(f"{self.inner_codec.name} has sizes that depend on the values; it cannot be the inner codec")

    def decoded_dtype(self, dtype: DType) -> DType:
        return DType.F32

    def inner_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        if self.outliers and spec.size > 2**32:
            raise UnsupportedError(f"{spec} is too large: positions of outliers must fit u32", code="E_SPEC")
        parts, factor = dict(self.inner_layout(spec)), FLOATS[self.factor]
        if self.rank:
            parts["left"] = TensorSpec((spec.rows, self.rank), factor)
            parts["right"] = TensorSpec((self.rank, spec.columns), factor)
        if self.outliers:
            count = min(self.outliers, spec.size)
            parts["places"] = TensorSpec((count,), DType.U32)
            parts["values"] = TensorSpec((count,), factor)
        return parts

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """MalformedError if the places are not ascending ones inside the tensor."""
        self.layout(spec)
        self.inner_codec.decode(spec, self.inner_parts(parts), out)
        with np.errstate(all="ignore"):
            if self.rank:
                left, right = (astype(parts[name], DType.F32.numpy) for name in ("left", "right"))
                kernels.add_product(left, right, out.reshape(spec.rows, spec.columns))
            if self.outliers:
                places = parts["places"]
                if (places[-1:] >= spec.size).any() or not (places[1:] > places[:-1]).all():
                    raise MalformedError(
                        "the positions of outliers are not ascending positions in the tensor", code="E_PART_VALUES"
                    )
                out.reshape(-1)[places] = np.asarray(parts["values"], np.float32)

    def encode_around(self, spec: TensorSpec, array: Array, encode_inner: EncodeInner) -> Parts:
        layout = self.layout(spec)
        with np.errstate(over="ignore"):
            rest = np.array(array, np.float32, order="C").reshape(spec.shape)
        require_finite(np.isfinite(rest).all())
        flat = rest.reshape(-1)
        places = _greatest(np.abs(flat), min(self.outliers, spec.size))
        values = flat[places]
        flat[places] = 0
        parts = dict(self.under_prefix(encode_inner(spec, rest)))
        if self.rank:
            lost = rest - self.inner_codec.decode(spec, self.inner_parts(parts))
            lost.reshape(-1)[places] = 0
            left, right = _low_rank(lost.reshape(spec.rows, spec.columns), self.rank)
            parts |= {"left": self._narrow(left), "right": self._narrow(right)}
        if self.outliers:
            parts |= {"places": places.astype(np.uint32), "values": self._narrow(values)}
        return {name: parts[name] for name in layout}

    def _narrow(self, wide: Array) -> Array:
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(wide, FLOATS[self.factor].numpy)
        if not np.isfinite(stored.astype(np.float32)).all():
            raise UnsupportedError(
                f"the weights are too large for {self.factor} factors", code="E_RANGE", hint="use f32 factors"
            )
        return stored


def _greatest(magnitudes: Array, count: int) -> Array:
    """The places of the greatest, in order; of equal ones the first."""
    if not count:
        return np.zeros(0, np.int64)
    least = np.partition(magnitudes, magnitudes.size - count)[magnitudes.size - count]
    above = np.flatnonzero(magnitudes > least)
    return np.sort(np.concatenate([above, np.flatnonzero(magnitudes == least)[: count - above.size]]))


def _low_rank(matrix: Array, rank: int) -> tuple[Array, Array]:
    """Nearly the best product of that rank: orthogonal iteration from a fixed start, where a full SVD would take minutes.

    The singular values are shared between both factors, so that neither leaves the range of a narrow type.
    """
    rows, columns = matrix.shape
    useful = min(rank, rows, columns)
    left, right = np.zeros((rows, rank), np.float32), np.zeros((rank, columns), np.float32)
    if useful == 0 or not matrix.any():
        return left, right
    basis = np.random.default_rng(0).standard_normal((columns, min(useful + 8, rows, columns)), np.float32)
    for _ in range(_SWEEPS):
        basis = _orthonormal(matrix.T @ _orthonormal(matrix @ basis))
    image = (matrix @ basis).astype(np.float64)
    squares, turn = np.linalg.eigh(image.T @ image)
    kept = min(useful, int(np.count_nonzero(squares > 0)))
    root, turn = squares[::-1][:kept] ** 0.25, turn[:, ::-1][:, :kept]
    left[:, :kept] = image @ turn / root
    right[:kept] = root[:, None] * (turn.T @ basis.T)
    return left, right


def _orthonormal(wide: Array) -> Array:
    """An orthonormal basis of the columns, from the eigenvectors of their few products."""
    tall = wide.astype(np.float64)
    squares, turn = np.linalg.eigh(tall.T @ tall)
    kept = squares > squares[-1] * 1e-12
    basis: Array = (tall @ (turn[:, kept] / np.sqrt(squares[kept]))).astype(np.float32)
    return basis
