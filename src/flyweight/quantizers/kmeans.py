"""`kmeans`: the palette with the least squared error, weighted by importance where it is given.

Scalar tables are optimal, by dynamic programming over the sorted distinct values of a table (`kernels.palette_cuts`):

- a table of at most 65,536 weights: over its values as they are;
- a larger one: over the sums of bins that hold f32 values equal to 11 significant bits. A bin holds one value where the
  weights came from f16 or bf16; otherwise clusters are cut between bins. More than 65,536 bins are joined in
  neighbouring pairs.

Vector tables are not: k-means++ seeding, then Lloyd's iteration, on at most 65,536 vectors of a table, evenly spaced. The
draws of the seeding are the golden-ratio sequence, so that nothing here is random. The weight of a vector is the mean of
its elements' weights.

Entries are then rounded to their stored type, and codes chosen anew against them. All sums run in order, so the bytes are
the same on every machine.
"""

from __future__ import annotations

from math import prod

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array, Parts
from flyweight.codecs.palette import Palette
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.kernels.palettes.kmeans_1d import centres
from flyweight.quantizers.quantizer import Quantizer

_MOST_POINTS = 1 << 16
_ROUNDS = 40
_GOLDEN = (5**0.5 - 1) / 2


def _fill(array: Array, codec: Palette, spec: TensorSpec, importance: Array | None) -> Parts:
    frame = codec.frame(spec)
    points = codec.finite_points(frame, array)
    weights = None if importance is None else frame.points(_weights(importance, spec)).mean(axis=1, dtype=np.float32)
    tables = np.zeros((prod(frame.tables), codec.entries, codec.vector))
    if codec.vector == 1 and frame.count:
        tables[:, :, 0] = _line_tables(points[:, 0], weights, frame.run, codec.entries)
    elif frame.count:
        for table, start in enumerate(range(0, frame.count, frame.run)):
            own = slice(start, start + frame.run)
            tables[table] = vector_centres(points[own], None if weights is None else weights[own], codec.entries)
    return codec.fill(frame, points, tables)


kmeans = Quantizer("kmeans", lambda codec: isinstance(codec, Palette), _fill)


def _weights(importance: Array, spec: TensorSpec) -> Array:
    wide = np.asarray(importance, np.float32)
    if not np.isfinite(wide).all() or (wide < 0).any():
        raise UnsupportedError("importance weights must be finite and not negative", code="E_IMPORTANCE")
    try:
        return np.broadcast_to(wide, spec.shape)
    except ValueError:
        raise UnsupportedError(f"importance of shape {wide.shape} does not match {spec}", code="E_IMPORTANCE") from None


# On a line ------------------------------------------------------------------------------------


def _line_tables(points: Array, weights: Array | None, run: int, entries: int) -> Array:
    """The centres of each run of points, (tables, entries) float64."""
    whole = len(points) - len(points) % run
    runs = [points[:whole].reshape(-1, run), points[whole:].reshape(-1, max(len(points) - whole, 1))]
    pulls = [None if weights is None else weights[:whole].reshape(-1, run), None if weights is None else weights[None, whole:]]
    return np.concatenate([optimal_centres(values, pull, entries) for values, pull in zip(runs, pulls, strict=True)])


def optimal_centres(values: Array, weights: Array | None, clusters: int) -> Array:
    """The means of the best clusters of each row, ascending, float64; where there are fewer values than clusters the last one
    repeats. A row without weight is one whose values all weigh alike."""
    tables, count = values.shape
    out = np.zeros((tables, clusters))
    if weights is None or not tables:
        pull = np.empty((0, count), np.float32)
    else:
        pull = np.where(weights.any(axis=1, keepdims=True), weights, np.float32(1))
    if count <= _MOST_POINTS:
        workspace = np.empty((2, count), np.uint64), np.empty((6, count + 1)), np.empty((clusters, count + 1), np.int32)
        kernels.palette_centres(np.ascontiguousarray(values), pull, *workspace, out)
        return out
    for table, row in enumerate(values):
        mass, moment = _bins(row, pull[table : table + 1])
        out[table] = centres(mass, moment, clusters, kernels.palette_cuts)
    return out


def _bins(values: Array, weights: Array) -> tuple[Array, Array]:
    """Weight and weight · value of neighbouring values, ascending; `weights` is one row or none."""
    sums = np.zeros(kernels.HISTOGRAM)
    kernels.palette_histogram(
        np.ascontiguousarray(values)[None], weights if len(weights) else np.empty((1, 0), np.float32), sums
    )
    sums = sums[sums[:, 0] > 0]
    while len(sums) > _MOST_POINTS:
        even = np.concatenate([sums, np.zeros((len(sums) % 2, 2))])
        sums = even[0::2] + even[1::2]
    return np.ascontiguousarray(sums[:, 0]), np.ascontiguousarray(sums[:, 1])


# In space -------------------------------------------------------------------------------------


def vector_centres(points: Array, weights: Array | None, clusters: int) -> Array:
    """Good, not optimal, centres of vectors. (clusters, vector) float64"""
    if len(points) > _MOST_POINTS:
        chosen = np.arange(_MOST_POINTS) * len(points) // _MOST_POINTS
        points, weights = points[chosen], None if weights is None else weights[chosen]
    if not len(points):
        return np.zeros((clusters, points.shape[1]))
    points = np.ascontiguousarray(points)
    mass = np.ones(len(points)) if weights is None or not weights.any() else weights.astype(np.float64)
    centres = _seeds(points.astype(np.float64), mass, clusters)
    codes = np.zeros((len(points), 1), np.uint8)
    for _ in range(_ROUNDS):
        before = codes.copy()
        kernels.palette_nearest_vector(points, np.ascontiguousarray(centres, np.float32), codes)
        owner = codes[:, 0]
        total = np.bincount(owner, mass, clusters)
        for axis in range(points.shape[1]):
            pull = np.bincount(owner, mass * points[:, axis], clusters)
            np.divide(pull, total, out=centres[:, axis], where=total > 0)  # a centre without points stays
        if np.array_equal(codes, before):
            break
    return centres


def _seeds(points: Array, mass: Array, clusters: int) -> Array:
    """k-means++: each next seed falls on a point with a chance proportional to its error so far."""
    centres = np.empty((clusters, points.shape[1]))
    error = mass.copy()
    for seed in range(clusters):
        reach = np.cumsum(error)
        draw = (seed + 1) * _GOLDEN % 1 * reach[-1]
        centres[seed] = points[min(int(np.searchsorted(reach, draw, side="right")), len(points) - 1)]
        apart = points - centres[seed]
        distance = mass * sum(apart[:, axis] ** 2 for axis in range(points.shape[1]))
        error = distance if seed == 0 else np.minimum(error, distance)
    return centres
