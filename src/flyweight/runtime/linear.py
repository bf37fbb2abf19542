"""Linear layers over weights as they are stored.

FORMS is the table: codec name → the product kernel's view of a tensor, or None when it has none for these parameters.
What has no form is decoded a few rows at a time and multiplied, so no layer ever needs a decoded copy of itself. A codec's
module is imported where a tensor of a model has that codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs import codec_for, take_rows
from flyweight.dtypes import DType
from flyweight.kernels.reference_matvec import ACTIVATIONS, normalize
from flyweight.tensor import EncodedTensor, has_rows

__all__ = ["FORMS", "Gated", "Linear", "decoded_rows", "form_of"]

Array = np.ndarray[Any, Any]

_SLAB = 1 << 20  # weights decoded at a time: 4 MB of f32, which stay in the last cache


def _raw(tensor: EncodedTensor, **masked: Any) -> kernels.Matrix | None:
    names = {DType.F32: "f32", DType.F16: "f16", DType.BF16: "bf16"}
    form = names.get(tensor.spec.dtype)
    return kernels.matrix(form, weights=tensor.parts["data"], **masked) if form else None


def _blocks(tensor: EncodedTensor) -> kernels.Matrix | None:
    return kernels.matrix(tensor.codec.name, blocks=tensor.parts["blocks"])


def _affine(tensor: EncodedTensor) -> kernels.Matrix | None:
    from flyweight.codecs.affine import Affine

    codec = codec_for(tensor.codec)
    assert isinstance(codec, Affine)
    columns = tensor.spec.columns
    group = codec.span(columns)
    if codec.axis != -1 or codec.packing != "little" or group % 32 or columns % group:
        return None
    codes = tensor.parts["codes"].view(np.uint8)
    if codec.form == "scale_bias" and codec.bits in (4, 8):
        return kernels.matrix(f"affine{codec.bits}", codes=codes, scale=tensor.parts["scale"], bias=tensor.parts["bias"])
    if codec.form == "symmetric" and codec.bits == 8:
        return kernels.matrix("symmetric8", codes=codes, scale=tensor.parts["scale"])
    return None


def _palette(tensor: EncodedTensor) -> kernels.Matrix | None:
    from flyweight.codecs.palette import Palette

    codec = codec_for(tensor.codec)
    assert isinstance(codec, Palette)
    if codec.scale or codec != Palette(bits=4, table=codec.table) or tensor.spec.columns % 32:
        return None
    table = tensor.parts["tables"].reshape(-1).astype(np.float32)
    return kernels.matrix("palette4", codes=tensor.parts["indices"].reshape(tensor.spec.rows, -1), table=table)


def _tabled(tensor: EncodedTensor, **masked: Any) -> kernels.Matrix | None:
    from flyweight.codecs.tabled import Tabled

    codec, columns = codec_for(tensor.codec), tensor.spec.columns
    assert isinstance(codec, Tabled)
    if codec.length % 32 and codec.length < columns:
        return None
    table = tensor.parts["entries" if codec.length else "pair"]
    return kernels.matrix(f"tabled{codec.bits}", codes=tensor.parts["codes"], entries=table, length=codec.length, **masked)


def _masked(tensor: EncodedTensor) -> kernels.Matrix | None:
    """With its mask where the product can skip blocks, else as what is held: that is the whole tensor."""
    from flyweight.codecs.masked import Masked

    codec = codec_for(tensor.codec)
    assert isinstance(codec, Masked)
    held = EncodedTensor(tensor.spec, codec.inner, codec.inner_parts(tensor.parts))
    make = _SKIPPING.get(held.codec.name)
    if make is None or codec.block % 32 or tensor.spec.columns % 32:
        return form_of(held)
    return make(held, block=codec.block, mask=tensor.parts["mask"])


_SKIPPING: Mapping[str, Callable[..., kernels.Matrix | None]] = {"raw": _raw, "tabled": _tabled}
FORMS: Mapping[str, Callable[[EncodedTensor], kernels.Matrix | None]] = {
    "raw": _raw,
    "affine": _affine,
    "palette": _palette,
    "tabled": _tabled,
    "masked": _masked,
    **{name: _blocks for name in kernels.BLOCKS if name in kernels.FORMS},
}


def form_of(tensor: EncodedTensor) -> kernels.Matrix | None:
    """The kernels' view of a matrix, or None when it must be decoded; a stored vector or stack of matrices has none."""
    make = FORMS.get(tensor.codec.name)
    return make(tensor) if make and len(tensor.spec.shape) == 2 and tensor.spec.columns % 32 == 0 else None


def _stands_by_rows(tensor: EncodedTensor) -> bool:
    """Of a single row the shapes do not tell whether it stands alone, and it is the whole tensor."""
    return tensor.spec.rows > 1 and has_rows(tensor.spec, codec_for(tensor.codec).layout(tensor.spec))


def decoded_rows(tensor: EncodedTensor, rows: slice | Array) -> Array:
    """Some rows as f32."""
    if _stands_by_rows(tensor):
        chosen = take_rows(tensor, rows)
        return np.asarray(codec_for(chosen.codec).decode(chosen.spec, chosen.parts), np.float32)
    whole = codec_for(tensor.codec).decode(tensor.spec, tensor.parts)
    return np.asarray(whole.reshape(tensor.spec.rows, -1)[rows], np.float32)


class Linear:
    """out = f(x) · [W₁; W₂; …]ᵀ + bias, or out += …; f is RMS normalisation when a gain is given."""

    def __init__(
        self, tensors: Sequence[EncodedTensor], bias: Array | None = None, *, int8: bool = True, threads: int = 1
    ) -> None:
        self.tensors, self.bias, self.int8, self.threads = tuple(tensors), bias, int8, threads
        self.rows = sum(tensor.spec.rows for tensor in tensors)
        forms = [form_of(tensor) for tensor in tensors]
        self.matrices = [form for form in forms if form] if all(forms) else []
        """The tensors as the kernels take them; none unless they take all."""

    def __call__(self, x: Array, out: Array, *, gain: Array | None = None, eps: float = 0.0, add: bool = False) -> None:
        if self.matrices:
            kernels.multiply(
                self.matrices, x, out, gain=gain, eps=eps, bias=self.bias, add=add, int8=self.int8, threads=self.threads
            )
            return
        x = normalize(x, gain, eps)
        for rows, weights in self._decoded():
            product = self._product(x, weights)
            if self.bias is not None:
                product += self.bias[rows]
            out[:, rows] = out[:, rows] + product if add else product

    def _product(self, x: Array, weights: Array) -> Array:
        """By our own kernel where it takes such rows: NumPy's BLAS has threads of its own, which wait by spinning."""
        if weights.shape[1] % 32:
            return np.asarray(x @ weights.T)
        out = np.empty((len(x), len(weights)), np.float32)
        kernels.multiply([kernels.matrix("f32", weights=weights)], x, out, int8=False, threads=self.threads)
        return out

    def _decoded(self) -> Iterator[tuple[slice, Array]]:
        """All weights as f32, some rows at a time; where rows do not stand alone, a tensor at a time."""
        first = 0
        for tensor in self.tensors:
            count = tensor.spec.rows
            step = max(_SLAB // tensor.spec.columns, 1) if _stands_by_rows(tensor) else count
            for start in range(0, count, step):
                stop = min(start + step, count)
                yield slice(first + start, first + stop), decoded_rows(tensor, slice(start, stop))
            first += count


class Gated:
    """out = act(gate · f(x)) ⊙ (up · f(x)), the rows of gate and those of up being the two halves of a Linear."""

    def __init__(self, both: Linear, activation: str) -> None:
        self.both, self.activation, self.rows = both, activation, both.rows // 2
        self.pair: Sequence[kernels.Matrix] = ()
        if both.bias is None and len(both.matrices) == 2:
            self.pair = both.matrices
        elif both.bias is None and len(both.matrices) == 1:
            self.pair = (both.matrices[0][: self.rows], both.matrices[0][self.rows :])

    def __call__(self, x: Array, out: Array, *, gain: Array | None, eps: float) -> None:
        both = self.both
        if self.pair:
            gate, up = self.pair
            kernels.gated(
                gate, up, x, out, activation=self.activation, gain=gain, eps=eps, int8=both.int8, threads=both.threads
            )
            return
        values = np.empty((len(x), both.rows), np.float32)
        both(x, values, gain=gain, eps=eps)
        np.multiply(ACTIVATIONS[self.activation](values[:, : self.rows]), values[:, self.rows :], out=out)
