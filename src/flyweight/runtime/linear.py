"""Linear layers over weights as they are stored.

A codec says how the product kernels see a tensor (`Codec.product`). What they cannot multiply is decoded a few rows at a
time and multiplied then, so no layer ever needs a decoded copy of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs import codec_for, take_rows
from flyweight.foundation.tensor import EncodedTensor, has_rows
from flyweight.kernels.products.activations import ACTIVATIONS, normalize
from flyweight.kernels.products.stored_matrix import decode_rows

Array = np.ndarray[Any, Any]

_SLAB = 1 << 20  # weights decoded at a time: 4 MB of f32, which stay in the last cache


def form_of(tensor: EncodedTensor) -> kernels.Matrix | None:
    """The kernels' view of a matrix, or None when it must be decoded; a stored vector or stack of matrices has none."""
    spec = tensor.spec
    return codec_for(tensor.codec).product(spec, tensor.parts) if len(spec.shape) == 2 and spec.columns % 32 == 0 else None


class DecodedRows:
    """Rows of a tensor as f32, decoded when they are asked for: `DecodedRows(tensor)[rows]`."""

    def __init__(self, tensor: EncodedTensor) -> None:
        self.tensor, self._codec = tensor, codec_for(tensor.codec)
        spec = tensor.spec
        parts_have_rows = spec.rows > 1 and has_rows(spec, self._codec.layout(spec))
        self._form = None if parts_have_rows else form_of(tensor)
        """What knows where each row lies where the parts have none."""
        self.one_by_one = parts_have_rows or self._form is not None
        """Whether some rows can be decoded without the others; a single row is the whole tensor."""

    def __getitem__(self, rows: slice | Array) -> Array:
        if self._form is not None:
            return decode_rows(self._form, rows)
        if self.one_by_one:
            chosen = take_rows(self.tensor, rows)
            return np.asarray(self._codec.decode(chosen.spec, chosen.parts), np.float32)
        whole = self._codec.decode(self.tensor.spec, self.tensor.parts)
        return np.asarray(whole.reshape(self.tensor.spec.rows, -1)[rows], np.float32)


class Linear:
    """out = f(x) · [W₁; W₂; …]ᵀ + bias, or out += …; f is RMS normalisation when a gain is given."""

    def __init__(
        self, tensors: Sequence[EncodedTensor], bias: Array | None = None, *, int8: bool = True, threads: int = 1
    ) -> None:
        self.bias, self.int8, self.threads = bias, int8, threads
        self.rows = sum(tensor.spec.rows for tensor in tensors)
        forms = [form_of(tensor) for tensor in tensors]
        self.matrices = [form for form in forms if form] if all(forms) else []
        """The tensors as the kernels take them; none unless they take all."""
        self._rows = [] if self.matrices else [DecodedRows(tensor) for tensor in tensors]

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
        """All weights as f32, some rows at a time; a tensor at a time where rows cannot be decoded one by one."""
        first = 0
        for rows in self._rows:
            spec = rows.tensor.spec
            step = max(_SLAB // spec.columns, 1) if rows.one_by_one else spec.rows
            for start in range(0, spec.rows, step):
                stop = min(start + step, spec.rows)
                yield slice(first + start, first + stop), rows[start:stop]
            first += spec.rows


class Gated:
    """out = act(gate · f(x)) ⊙ (up · f(x)), the rows of gate and those of up being the two halves of a Linear."""

    def __init__(self, both: Linear, activation: str) -> None:
        self.both, self.activation, self.rows = both, activation, both.rows // 2
        self.pair: Sequence[kernels.Matrix] = ()
        if both.bias is None and len(both.matrices) == 2:
            self.pair = both.matrices
        elif both.bias is None and len(both.matrices) == 1 and both.matrices[0].has_rows:
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
