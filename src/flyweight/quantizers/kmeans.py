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
from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.palette import Palette
from flyweight.errors import UnsupportedError
from flyweight.tensor import TensorSpec

__all__ = ["kmeans", "optimal_centres", "vector_centres"]

_MOST_POINTS = 1 << 16
_ROUNDS = 40
_GOLDEN = (5**0.5 - 1) / 2


def kmeans(array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
    if not isinstance(codec, Palette):
        raise UnsupportedError(f"the kmeans quantizer fills palettes, not {codec.spec}", code="E_QUANTIZER")
    frame = codec.frame(spec)
    points = codec.finite_points(frame, array)
    weights = None if importance is None else frame.points(_weights(importance, spec)).mean(axis=1, dtype=np.float32)
    tables = np.zeros((prod(frame.tables), codec.entries, codec.vector))
    for table, start in enumerate(range(0, frame.count, frame.run)):
        own = slice(start, start + frame.run)
        pull = None if weights is None or not weights[own].any() else weights[own]
        if codec.vector == 1:
            tables[table, :, 0] = optimal_centres(points[own, 0], pull, codec.entries)
        else:
            tables[table] = vector_centres(points[own], pull, codec.entries)
    return codec.fill(frame, points, tables)


def _weights(importance: Array, spec: TensorSpec) -> Array:
    wide = np.asarray(importance, np.float32)
    if not np.isfinite(wide).all() or (wide < 0).any():
        raise UnsupportedError("importance weights are finite and not negative", code="E_IMPORTANCE")
    try:
        return np.broadcast_to(wide, spec.shape)
    except ValueError:
        raise UnsupportedError(f"importance of shape {wide.shape} does not fit {spec}", code="E_IMPORTANCE") from None


# On a line ------------------------------------------------------------------------------------


def optimal_centres(values: Array, weights: Array | None, clusters: int) -> Array:
    """The means of the best clusters, ascending, float64; where there are fewer values than clusters the last one repeats."""
    mass, moment = _points_on_the_line(values, weights)
    if mass.size > clusters:
        owner = _owners(mass, moment, clusters)
        mass, moment = np.bincount(owner, mass), np.bincount(owner, moment)
    centres = np.zeros(clusters)
    if mass.size:
        centres[: mass.size] = moment / mass
        centres[mass.size :] = centres[mass.size - 1]
    return centres


def _points_on_the_line(values: Array, weights: Array | None) -> tuple[Array, Array]:
    """Weight and weight · value of the distinct values (or of bins of them), ascending."""
    if values.size <= _MOST_POINTS:
        distinct, place = np.unique(values, return_inverse=True)
        mass = np.bincount(place, weights, distinct.size).astype(np.float64)
        sums = np.stack([mass, mass * distinct], axis=1)
    else:
        sums = np.zeros(kernels.HISTOGRAM)
        flat = np.ascontiguousarray(values)[None]
        kernels.palette_histogram(flat, np.empty((1, 0), np.float32) if weights is None else weights[None], sums)
    sums = sums[sums[:, 0] > 0]
    while len(sums) > _MOST_POINTS:
        even = np.concatenate([sums, np.zeros((len(sums) % 2, 2))])
        sums = even[0::2] + even[1::2]
    return np.ascontiguousarray(sums[:, 0]), np.ascontiguousarray(sums[:, 1])


def _owners(mass: Array, moment: Array, clusters: int) -> Array:
    """The cluster of each point, by the best cuts."""
    points = mass.size
    centred = moment - mass * (np.cumsum(moment)[-1] / np.cumsum(mass)[-1])  # small sums keep their digits
    weight, pull = (np.concatenate([[0.0], np.cumsum(sums)])[None] for sums in (mass, centred))
    cuts = np.empty((clusters, points + 1), np.int32)
    kernels.palette_cuts(weight, pull, np.empty((2, points + 1)), cuts)
    owner = np.zeros(points, np.int64)
    end = points
    for cluster in range(clusters - 1, 0, -1):
        end = cuts[cluster, end]
        owner[end] = 1
    return np.cumsum(owner)


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
