"""`clip`: scale and offset of least squared error, found by a search in each group.

The extremes of a group are rare; a grid that stops short of them is finer everywhere else. From the grid of `nearest`
the ends are drawn in towards zero by each of `_SHRINK`; after the best, least squares moves scale and offset to fit its
codes, `_REFITS` times. Every grid is judged as it will be stored and decoded, by Σ importance · (w − ŵ)², the differences
in float32 and the sum in float64, and only a better one replaces the last, so no group is worse off than under `nearest`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array, Parts
from flyweight.codecs.affine import Affine
from flyweight.codecs.casts import astype
from flyweight.foundation.dtypes import DType
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers.quantizer import Quantizer, chunks, group_columns, stored_or

_SHRINK = tuple(round(1 - 0.04 * i, 2) for i in range(1, 17))
_REFITS = 3


def _fill(array: Array, codec: Affine, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    rows, weights = codec.finite_rows(spec, array), codec.weight_rows(spec, inputs.importance if inputs else None)
    scale, offset = codec.representable(*codec.span_of(rows))
    for part, weight in chunks(rows, weights):
        search = _Search(codec, *group_columns(codec, rows[part], weight))
        best = search.best(scale[part].reshape(1, -1), offset[part].reshape(1, -1))
        scale[part], offset[part] = (grid.reshape(scale[part].shape) for grid in best)
    return codec.store(spec, codec.nearest_codes(rows, scale, offset), scale, offset)


clip = Quantizer("clip", lambda codec: isinstance(codec, Affine), _fill)


@dataclass(frozen=True, slots=True)
class _Search:
    """Groups are columns: scales, offsets and losses are (grids, groups)."""

    codec: Affine
    values: Array
    weights: Array

    def best(self, scale: Array, offset: Array) -> tuple[Array, Array]:
        scales, offsets = (np.concatenate(both) for both in zip((scale, offset), self.shrunk(scale, offset), strict=True))
        losses = self.loss(scales, offsets)
        least = np.where(np.isnan(losses), np.inf, losses).argmin(axis=0)[None]  # the first of equal ones: that of `nearest`
        scale, offset, loss = (np.take_along_axis(part, least, axis=0) for part in (scales, offsets, losses))
        last = scale, offset, loss
        for _ in range(_REFITS):
            last = self.better(last, self.refit(*last[:2]))
        return last[:2]

    def shrunk(self, scale: Array, offset: Array) -> tuple[Array, Array]:
        """Both ends of the grid drawn in towards zero by each of `_SHRINK`. A zero is in steps, and stays.

        A symmetric grid has a code more below zero, and which side that is the sign of the scale says: both are tried.
        """
        by = np.array(_SHRINK if self.codec.form != "symmetric" else (*_SHRINK, *(-shrink for shrink in _SHRINK)), np.float32)[
            :, None
        ]
        grids = scale * by, offset * by if self.codec.form == "scale_bias" else np.repeat(offset, len(by), axis=0)
        return stored_or(self.codec, grids, (scale, offset))

    def refit(self, scale: Array, offset: Array) -> tuple[Array, Array]:
        """Scale and offset of least square error for the codes of a grid; as they were where there is no one answer."""
        symmetric = self.codec.form == "symmetric"
        sums = np.empty((5, scale.shape[1]))
        grid = self.grid(scale, offset)
        kernels.grid_sums(self.values, self.weights, *grid, self.codec.half if symmetric else 0, sums)
        n, sx, sq, xq, qq = (total[None] for total in sums)
        if symmetric:
            return np.where(qq > 0, xq / np.where(qq > 0, qq, 1), scale), offset
        spread = n * qq - sq * sq
        sound = spread > 1e-9 * n * qq
        s = np.where(sound, (n * xq - sx * sq) / np.where(sound, spread, 1), scale)
        bias = (sx - s * sq) / n
        if self.codec.form == "scale_bias":
            return s, np.where(sound, bias, offset)
        sound &= s != 0
        return np.where(sound, s, scale), np.where(sound, -bias / np.where(sound, s, 1), offset)

    def better(self, last: tuple[Array, Array, Array], grid: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """The better of two grids, group by group."""
        scale, offset = stored_or(self.codec, grid, last[:2])
        loss = self.loss(scale, offset)
        wins = loss < last[2]
        return np.where(wins, scale, last[0]), np.where(wins, offset, last[1]), np.where(wins, loss, last[2])

    def loss(self, scale: Array, offset: Array) -> Array:
        """What each group loses by its nearest codes on grids, a row of them after the other."""
        loss = np.empty(scale.shape)
        steps, origins, biased, levels = self.grid(scale, offset)
        for row in range(len(loss)):
            one = slice(row, row + 1)
            kernels.grid_loss(self.values, self.weights, steps[one], origins[one], biased, levels, loss[one])
        return loss

    def grid(self, scale: Array, offset: Array) -> tuple[Array, Array, bool, int]:
        """Grids as the kernels take them."""
        step, origin = (astype(part, DType.F32.numpy) for part in (scale, offset))
        return step, origin, self.codec.form == "scale_bias", self.codec.levels
