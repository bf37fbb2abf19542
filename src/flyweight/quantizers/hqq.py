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

import numpy as np

from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.affine import Affine
from flyweight.codecs.base import column_weights
from flyweight.codecs.hqq import Hqq
from flyweight.errors import UnsupportedError
from flyweight.quantizers.base import chunks, stored_or
from flyweight.tensor import TensorSpec

__all__ = ["hqq"]

F = np.float32
_ROUNDS = 10
_LARGEST = F(2e4)
"""mistral.rs's bound of t."""


def hqq(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
    if isinstance(codec, Hqq):
        return _whole_tensor(array, codec, spec, importance)
    if not isinstance(codec, Affine) or codec.form == "symmetric":
        raise UnsupportedError(
            f"the hqq quantizer fills hqq and affine grids with an offset, not {codec.spec}", code="E_QUANTIZER"
        )
    rows, weights = codec.finite_rows(spec, array), codec.weight_rows(spec, importance)
    groups = -(-rows.shape[1] // codec.span(rows.shape[1]))
    scale, zero = np.zeros((len(rows), groups), F), np.zeros((len(rows), groups), F)
    for part, weight in chunks(rows, weights):
        scale[part], zero[part] = _by_group(codec, rows[part], weight)
    grid = scale, zero if codec.form == "scale_zero" else -zero * scale
    stored = stored_or(codec, grid, codec.representable(*codec.span_of(rows)))
    return codec.store(spec, codec.nearest_codes(rows, *stored), *stored)


def _by_group(codec: Affine, rows: Array, weights: Array) -> tuple[Array, Array]:
    """Scale and zero of each group, (rows, groups)."""
    count, columns = rows.shape
    span = min(codec.span(columns), columns)
    # A short last group is filled up with its last value at no weight.
    short = -columns % span
    padded = np.pad(rows, ((0, 0), (0, short)), mode="edge")
    weight = np.pad(np.broadcast_to(weights, (len(weights), columns)), ((0, 0), (0, short)))
    w, by = (np.ascontiguousarray(a.reshape(len(a), -1, span).transpose(2, 0, 1)) for a in (padded, weight))
    low, high = w.min(axis=0), w.max(axis=0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        t = F(codec.levels) / (high - low)
        t = np.where(np.isfinite(t), t, F(1))
    total = _sum(by)
    best = z = -low * t
    least = np.full_like(t, np.inf)
    beta = F(10)
    for _ in range(_ROUNDS):
        error, mean, beta = _round(w, t, z, beta, codec.levels, by, total)
        better = error < least
        if not better.any():
            break
        least, best, z = np.where(better, error, least), np.where(better, z, best), mean
    with np.errstate(divide="ignore"):
        return (F(1) / t).reshape(count, -1), best.reshape(count, -1)


def _round(w: Array, t: Array, z: Array, beta: F, levels: int, by: Array, total: Array) -> tuple[Array, Array, F]:
    """One step: mean |w − ŵ| of every group, its next z, the next β. Groups run down the first axis."""
    with np.errstate(all="ignore"):
        q = _codes(w, t, z, levels)
        off = w - (q - z) / t
        size = np.abs(off)
        sparse = np.sign(off) * np.maximum(size - F(1) / beta * size ** F(-0.3), F(0))
        return _sum(size * by) / total, _sum((q - (w - sparse) * t) * by) / total, F(beta * F(1.01))


def _codes(w: Array, t: Array, z: Array, levels: int) -> Array:
    """Halves away from zero."""
    steps = w * t + z
    whole = np.trunc(steps)
    rounded: Array = np.clip(whole + np.trunc(F(2) * (steps - whole)), 0, levels)
    return rounded


def _sum(terms: Array) -> Array:
    """Down a group, in order: the last bit of a sum depends on it."""
    total = np.zeros(terms.shape[1:], F)
    for term in terms:
        total = total + term
    return total


def _whole_tensor(array: Array, codec: Hqq, spec: TensorSpec, importance: Array | None) -> Parts:
    matrix, affine = codec.matrix(spec), codec.affine
    w = np.ascontiguousarray(affine.finite_rows(matrix, np.ascontiguousarray(array).reshape(matrix.shape)).T)
    by = np.broadcast_to(column_weights(importance, spec), (spec.rows, spec.columns)).reshape(matrix.shape)
    total = _sum(by)
    low, high = (extreme.reduce(w, axis=0) for extreme in (np.minimum, np.maximum))
    with np.errstate(over="ignore", divide="ignore"):
        t = np.minimum(F(1) / (high - low) * F(affine.levels), _LARGEST)
        z, beta, least = -low * t, F(10), np.inf
    for _ in range(_ROUNDS if w.size else 0):
        error, z, beta = _round(w, t, z, beta, affine.levels, by, total)
        if not (mean := float(error.mean())) < least:
            break
        least = mean
    with np.errstate(divide="ignore"):
        stored = affine.representable((F(1) / t)[:, None], z[:, None])
    return affine.store(matrix, np.ascontiguousarray(_codes(w, t, z, affine.levels).astype(np.uint8).T), *stored)
