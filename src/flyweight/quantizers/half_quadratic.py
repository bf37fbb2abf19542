"""`hqq`: half-quadratic quantization (Badri and Shaji, 2023), for affine grids w = (q − z) / t with any real z.

Few large errors matter less than many small ones: what is minimised is Σ |w − ŵ|^0.7, by splitting the error into a
sparse part e and the rest. From t = n / (max − min), n = 2^bits − 1, and z = −min · t, up to ten times, β from 10 growing
by 1.01:

    q = clip(round(w · t + z), 0, n)        ŵ = (q − z) / t
    e = shrink(w − ŵ)                       shrink(x) = sign(x) · max(|x| − |x|^−0.3 / β, 0)
    z = mean of q − (w − e) · t

and it ends when the mean of |w − ŵ| no longer falls. Arithmetic is float32.

Groups of the codec `hqq` are filled byte for byte as mistral.rs does: halves round away from zero, t is at most 20000, the
mean that ends the search is over the whole tensor, and the last z counts. In an affine codec every group ends for itself
and keeps its best z, so that a result never depends on what else is in the tensor; then the codes are the nearest to
the stored grid, and a group that such a grid does not fit is left to `nearest`. Importance weighs both means.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.affine import Affine
from flyweight.codecs.codec import column_weights
from flyweight.codecs.hqq import Hqq
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers.quantizer import Quantizer, chunks, group_columns, stored_or

F = np.float32
_INVERSES = tuple(1 / beta for beta in accumulate([10.0, *[1.01] * 9], mul))
"""1 / β of each step."""
_MOST_ERROR = 1e4
"""mistral.rs ends where the first mean of |w − ŵ| is no less."""
_LARGEST = F(2e4)
"""mistral.rs's bound of t."""


def _takes(codec: Codec) -> bool:
    return isinstance(codec, Hqq) or (isinstance(codec, Affine) and codec.form != "symmetric")


def _fill(array: Array, codec: Affine | Hqq, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    if isinstance(codec, Hqq):
        return _whole_tensor(array, codec, spec, inputs)
    rows, weights = codec.finite_rows(spec, array), codec.weight_rows(spec, inputs.importance if inputs else None)
    groups = -(-rows.shape[1] // codec.span(rows.shape[1]))
    scale, zero = np.zeros((len(rows), groups), F), np.zeros((len(rows), groups), F)
    for part, weight in chunks(rows, weights):
        scale[part], zero[part] = _by_group(codec, rows[part], weight)
    grid = scale, zero if codec.form == "scale_zero" else -zero * scale
    stored = stored_or(codec, grid, codec.representable(*codec.span_of(rows)))
    return codec.store(spec, codec.nearest_codes(rows, *stored), *stored)


hqq = Quantizer("hqq", _takes, _fill)


def _by_group(codec: Affine, rows: Array, weights: Array) -> tuple[Array, Array]:
    """Scale and zero of each group, (rows, groups)."""
    search = _Search.of(*group_columns(codec, rows, weights), codec.levels)
    low, high = search.extremes()
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        t = F(codec.levels) / (high - low)
        t = np.where(np.isfinite(t), t, F(1))
        best = z = -low * t
    least = np.full_like(t, np.inf)
    for inverse in _INVERSES:
        error, after = search.round(t, z, inverse)
        better = error < least
        if not better.any():
            break
        least, best, z = np.where(better, error, least), np.where(better, z, best), after
    with np.errstate(divide="ignore"):
        return (F(1) / t).reshape(len(rows), -1), best.reshape(len(rows), -1)


def _whole_tensor(array: Array, codec: Hqq, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    w = codec.finite_groups(spec, array)
    by = np.empty((0, w.shape[1]), F)
    if inputs is not None:
        wide = np.broadcast_to(column_weights(inputs.importance, spec), (spec.rows, spec.columns))
        by = codec.groups(np.ascontiguousarray(wide))
    search = _Search.of(w, by, codec.affine.levels)
    low, high = search.extremes()
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        t = np.minimum(F(1) / (high - low) * F(codec.affine.levels), _LARGEST)
        z = -low * t
    least = _MOST_ERROR
    for inverse in _INVERSES if w.size else ():
        error, z = search.round(t, z, inverse)
        if not (mean := float(error[0].mean())) < least:
            break
        least = mean
    with np.errstate(divide="ignore"):
        stored = codec.affine.representable(F(1) / t, z)
    codes = np.empty(w.shape, np.uint8)
    kernels.hqq_codes(w, t, z, codec.affine.levels, codes)
    return codec.store(codes, *stored)


@dataclass(frozen=True, slots=True)
class _Search:
    """Groups are columns, (elements, groups); what belongs to a group is (1, groups)."""

    values: Array
    weights: Array  # no rows: all alike
    total: Array  # Σ weights
    levels: int

    @classmethod
    def of(cls, values: Array, weights: Array, levels: int) -> _Search:
        total = np.full((1, values.shape[1]), 0 if len(weights) else len(values), F)
        for row in weights:  # in order, as the kernel adds
            total += row
        return cls(values, weights, total, levels)

    def extremes(self) -> tuple[Array, Array]:
        if not self.values.size:
            return (np.zeros((1, self.values.shape[1]), F),) * 2
        return self.values.min(axis=0, keepdims=True), self.values.max(axis=0, keepdims=True)

    def round(self, t: Array, z: Array, inverse: float) -> tuple[Array, Array]:
        """One step: mean |w − ŵ| of every group, and its next z."""
        error, after = np.empty_like(t), np.empty_like(t)
        kernels.hqq_round(self.values, self.weights, t, z, inverse, self.levels, error, after)
        with np.errstate(all="ignore"):
            return error / self.total, after / self.total
