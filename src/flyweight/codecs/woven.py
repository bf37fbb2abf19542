"""`woven`: trellis-coded weights in a rotated basis, of 2, 3 or 4 bits.

    w[r, c] = sign[c] · scale[r] / 8 · Σ over j of H[c, j] · level[r, j]

H is the matrix of Hadamard over each 64 columns, ±1; signs are a fixed sequence (`kernels.rotation_signs`). The level of a
weight depends on its code and on those above it in its column (`kernels.weaving`): few bits choose among many levels, and the
path of least error through a column is found by dynamic programming (`kernels.weave`).

    codes    u8  (rows · columns · bits / 8,)     row by row, 32 columns in 4 · bits bytes
    scale    f16 (rows,)

That takes bits + 16 / columns bits a weight. Columns are a multiple of 64. Sums of levels are whole numbers, so that a value is
rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype, cast_runs_into
from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.codecs.value_checks import require_f32, require_finite, require_one_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import Layout, TensorSpec

F = np.float32
_VALUES = 1 << 20
"""Values worked on at a time."""
_TOGETHER = 64
"""Columns that are coded before the others hear of their errors."""
_PASSES = 1
_LEAST_WEIGHT = F(1 / 4)
"""Of a row's scale beside the greatest in its strip: much smaller rows still become what they are, not their opposite."""


@dataclass(frozen=True)
class Woven(Codec):
    bits: int = 4

    name = "woven"
    rounds = True
    feeds_back = True
    copies_if_whole = 4

    def __post_init__(self) -> None:
        require_one_of(self, bits=kernels.WOVEN_TABLES)

    def layout(self, spec: TensorSpec) -> Layout:
        require_f32(self, spec)
        if spec.columns % kernels.TURNED:
            raise UnsupportedError(f"woven needs rows of whole {kernels.TURNED} values, not {spec}", code="E_BLOCK_ROWS")
        return {
            "codes": TensorSpec((spec.rows * self._row_bytes(spec),), DType.U8),
            "scale": TensorSpec((spec.rows,), DType.F16),
        }

    def _row_bytes(self, spec: TensorSpec) -> int:
        return spec.columns * self.bits // 8

    def _rows(self, spec: TensorSpec, parts: Parts) -> Array:
        """Packed codes, a row of bytes for each row."""
        return np.ascontiguousarray(parts["codes"]).reshape(spec.rows, self._row_bytes(spec))

    # Values

    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        cast_runs_into(self.decoded_runs(spec, parts), out)

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        """A few strips at a time."""
        if not spec.size:
            return
        packed, signs = self._rows(spec, parts), kernels.rotation_signs(spec.columns)
        scale = astype(np.ascontiguousarray(parts["scale"]), DType.F32.numpy)
        for rows in _slabs(spec):
            levels = kernels.woven_levels(kernels.unpack_woven(packed[rows], self.bits), self.bits)
            with np.errstate(all="ignore"):
                yield (kernels.rotate(levels.astype(F)) * (scale[rows, None] * F(0.125)) * signs).reshape(-1)

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        return self._encoded(spec, array, None)

    def turned_gram(self, gram: Array) -> Array:
        """The Gram matrix of rotated inputs."""
        signs, turned = kernels.rotation_signs(len(gram)), np.empty(gram.shape, F)
        step = max(_VALUES // max(len(gram), 1), 1)
        for start in range(0, len(gram), step):
            some = slice(start, start + step)
            turned[some] = kernels.rotate(gram[some] * signs) * F(0.125)
        for start in range(0, len(gram), step):
            some = slice(start, start + step)
            turned[:, some] = (kernels.rotate(np.ascontiguousarray(turned[:, some].T) * signs) * F(0.125)).T
        return turned

    def fed_back(self, spec: TensorSpec, array: Array, gram: Array, feedback: Array) -> Parts:
        return self._encoded(spec, array, (gram, feedback))

    def _encoded(self, spec: TensorSpec, array: Array, factors: tuple[Array, Array] | None) -> Parts:
        layout = self.layout(spec)
        if not spec.size:
            return {name: np.zeros(part.shape, part.dtype.numpy) for name, part in layout.items()}
        values = np.asarray(array).reshape(spec.rows, spec.columns)
        signs = kernels.rotation_signs(spec.columns)
        codes, scales = np.empty((spec.rows, self._row_bytes(spec)), np.uint8), np.empty(spec.rows, np.float16)
        for rows in _slabs(spec):
            some = astype(values[rows], DType.F32.numpy)
            require_finite(np.isfinite(some).all())
            with np.errstate(over="ignore"):
                turned = kernels.rotate(some * F(0.125) * signs)
            strips = _Columns(self.bits, np.ascontiguousarray(turned.T), factors)
            codes[rows] = kernels.pack_woven(np.ascontiguousarray(strips.codes.T), self.bits)
            scales[rows] = astype(strips.scale[0], DType.F16.numpy)
        return {"codes": codes.reshape(layout["codes"].shape), "scale": scales}

    # Products

    def product(self, spec: TensorSpec, parts: Parts) -> kernels.Matrix | None:
        scale = np.ascontiguousarray(parts["scale"]).reshape(spec.rows, 1)
        tables = kernels.WOVEN_TABLES[self.bits].view(np.uint8).reshape(1, -1)
        return kernels.matrix(f"woven{self.bits}", codes=self._rows(spec, parts), scale=scale, tables=tables)


def _slabs(spec: TensorSpec) -> Iterator[slice]:
    """Whole strips, as many as are worked on together."""
    step = max(_VALUES // spec.columns // kernels.STRIP, 1) * kernels.STRIP
    for start in range(0, spec.rows, step):
        yield slice(start, min(start + step, spec.rows))


class _Columns:
    """Some strips of a matrix, rotated and turned: (columns, rows)."""

    def __init__(self, bits: int, values: Array, factors: tuple[Array, Array] | None) -> None:
        self.bits, self.values = bits, values
        self.table = kernels.window_levels(bits).astype(F)[None]
        self.codes, self.levels = np.empty(values.shape, np.uint8), np.empty(values.shape, F)
        with np.errstate(over="ignore"):
            deviation = np.sqrt(np.square(values).mean(axis=0, keepdims=True))
        self.scale = self._near(deviation / kernels.UNIT[bits])
        self._weigh()
        if factors is None:
            for column in range(len(values)):
                self._weave(column, values[column])
            self._fit_plainly()
            return
        self.gram, self.feedback = factors
        self.error = np.zeros_like(values)
        for block in self._blocks():
            self._first_codes(block)
        for _ in range(_PASSES):
            self._fit()
            for block in self._blocks():
                self._settle(block)
        self._fit()

    @staticmethod
    def _near(scale: Array) -> Array:
        """As it can be stored."""
        with np.errstate(over="ignore"):
            stored = astype(astype(scale, DType.F16.numpy), DType.F32.numpy)
        if not np.isfinite(stored).all():
            raise UnsupportedError("the weights are too large for f16 scales", code="E_RANGE", hint="choose the codec affine")
        return stored

    def _weigh(self) -> None:
        """How much more an error of a row counts than it measures in steps, times its scale."""
        starts = range(0, self.scale.size, kernels.STRIP)
        greatest = np.repeat([self.scale[0, start : start + kernels.STRIP].max() for start in starts], kernels.STRIP)
        least = _LEAST_WEIGHT * greatest[: self.scale.size].astype(F)
        own = np.maximum(self.scale, least)
        self.weight = np.divide(own * own, self.scale, out=np.zeros_like(own), where=self.scale > 0)

    def _blocks(self) -> Iterator[slice]:
        for stop in range(len(self.values), 0, -_TOGETHER):
            yield slice(stop - _TOGETHER, stop)

    def _weave(self, column: int, wanted: Array) -> None:
        square, linear = self.weight * self.scale, F(-2) * self.weight * wanted
        own = slice(column, column + 1)
        kernels.weave(square, linear, kernels.STRIP, self.bits, self.table, self.codes[own], self.levels[own])

    def _first_codes(self, block: slice) -> None:
        adjusted = self.values[block].copy()
        kernels.add_products(self.feedback, block.start, block.stop, self.error[block.stop :], adjusted)
        for column in reversed(range(block.start, block.stop)):
            at = column - block.start
            self._weave(column, adjusted[at])
            self.error[column] = self.values[column] - self.scale[0] * self.levels[column]
            adjusted[:at] += self.error[column] * self.feedback[block.start : column, column, None]

    def _settle(self, block: slice) -> None:
        """Each column anew beside all others as they are."""
        pull = np.zeros_like(self.values[block])
        kernels.add_products(self.gram, block.start, 0, self.error, pull)
        for column in reversed(range(block.start, block.stop)):
            own = self.gram[column, column]
            if own <= 0:
                continue
            was = self.scale[0] * self.levels[column]
            self._weave(column, was + pull[column - block.start] / own)
            change = self.scale[0] * self.levels[column] - was
            self.error[column] -= change
            pull -= change * self.gram[block, column, None]

    def _fit(self) -> None:
        """The scale of each row by least squares in the metric of the Gram matrix."""
        product = np.zeros_like(self.values)
        kernels.add_products(self.gram, 0, 0, self.levels, product)
        square, linear = ((product * part).sum(axis=0, keepdims=True) for part in (self.levels, self.error))
        moved = np.divide(linear, square, out=np.zeros_like(square), where=square > 0)
        near = self._near(np.maximum(self.scale + moved, F(0)))
        change = near - self.scale
        better = change * (change * square - 2 * linear) < 0
        self.scale = np.where(better, near, self.scale)
        self._weigh()
        self.error = self.values - self.scale * self.levels

    def _fit_plainly(self) -> None:
        square, linear = ((self.levels * part).sum(axis=0, keepdims=True) for part in (self.levels, self.values))
        fitted = np.divide(linear, square, out=np.zeros_like(square), where=square > 0)
        self.scale = self._near(np.maximum(fitted, F(0)))
