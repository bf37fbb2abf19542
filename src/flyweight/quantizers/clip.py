"""`clip`: the affine grid of least square error that a search finds, group by group.

The extremes of a group are rare; a grid that stops short of them is finer everywhere else. From the grid of `nearest`
the ends are drawn in towards zero by each of `_SHRINK`; after the best, least squares moves scale and offset to fit its
codes, `_REFITS` times. Every grid is judged as it will be stored and decoded, by Σ importance · (w − ŵ)² in float64, and
only a better one replaces the last, so no group is worse off than under `nearest`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.affine import Affine
from flyweight.errors import UnsupportedError
from flyweight.quantizers.base import chunks, stored_or
from flyweight.tensor import TensorSpec

__all__ = ["clip"]

_SHRINK = tuple(round(1 - 0.04 * i, 2) for i in range(1, 17))
_REFITS = 3


def clip(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
    if not isinstance(codec, Affine):
        raise UnsupportedError(f"the clip quantizer fills affine grids, not {codec.spec}", code="E_QUANTIZER")
    rows, weights = codec.finite_rows(spec, array), codec.weight_rows(spec, importance)
    scale, offset = codec.representable(*codec.span_of(rows))
    for part, weight in chunks(rows, weights):
        search = _Search(codec, rows[part], weight)
        scale[part], offset[part] = search.best(scale[part], offset[part])
    return codec.store(spec, codec.nearest_codes(rows, scale, offset), scale, offset)


@dataclass(frozen=True, slots=True)
class _Search:
    codec: Affine
    rows: Array
    weights: Array  # (rows or 1, columns)

    def best(self, scale: Array, offset: Array) -> tuple[Array, Array]:
        first = scale, offset
        codes, loss = self.judge(*first)
        for shrink in _SHRINK:
            scale, offset, codes, loss = self.better((scale, offset, codes, loss), self.shrunk(*first, shrink))
        for _ in range(_REFITS):
            scale, offset, codes, loss = self.better((scale, offset, codes, loss), self.refit(codes, scale, offset))
        return scale, offset

    def shrunk(self, scale: Array, offset: Array, by: float) -> tuple[Array, Array]:
        """Both ends of the grid drawn in towards zero. A zero is in steps, and stays."""
        factor = np.float32(by)
        return scale * factor, offset * factor if self.codec.form == "scale_bias" else offset

    def refit(self, codes: Array, scale: Array, offset: Array) -> tuple[Array, Array]:
        """Scale and offset of least square error for these codes; as they were where there is no one answer."""
        q, w, x = codes.astype(np.float64), self.weights.astype(np.float64), self.rows.astype(np.float64)
        if self.codec.form == "symmetric":
            q = q - self.codec.half
            xq, qq = self.total(w * x * q), self.total(w * q * q)
            return np.where(qq > 0, xq / np.where(qq > 0, qq, 1), scale), offset
        n, sx, sq = self.total(np.broadcast_to(w, x.shape)), self.total(w * x), self.total(w * q)
        xq, qq = self.total(w * x * q), self.total(w * q * q)
        spread = n * qq - sq * sq
        sound = spread > 1e-9 * n * qq
        s = np.where(sound, (n * xq - sx * sq) / np.where(sound, spread, 1), scale)
        bias = (sx - s * sq) / n
        if self.codec.form == "scale_bias":
            return s, np.where(sound, bias, offset)
        sound &= s != 0
        return np.where(sound, s, scale), np.where(sound, -bias / np.where(sound, s, 1), offset)

    def better(self, last: tuple[Array, Array, Array, Array], grid: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
        """The better of two grids, group by group."""
        scale, offset = stored_or(self.codec, grid, last[:2])
        codes, loss = self.judge(scale, offset)
        wins = loss < last[3]
        span, columns = self.codec.span(self.rows.shape[1]), self.rows.shape[1]
        wide = np.repeat(wins, min(span, columns), axis=1)[:, :columns]
        return (
            np.where(wins, scale, last[0]),
            np.where(wins, offset, last[1]),
            np.where(wide, codes, last[2]),
            np.where(wins, loss, last[3]),
        )

    def judge(self, scale: Array, offset: Array) -> tuple[Array, Array]:
        """The nearest codes on a grid, and each group's loss."""
        codes = self.codec.nearest_codes(self.rows, scale, offset)
        off = self.rows.astype(np.float64) - self.codec.row_values(codes, scale, offset)
        return codes, self.total(self.weights * off * off)

    def total(self, terms: Array) -> Array:
        return np.add.reduceat(terms, np.arange(0, terms.shape[1], self.codec.span(terms.shape[1])), axis=1)
