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

from collections.abc import Iterable
from itertools import groupby
from math import prod
from typing import NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array, Parts
from flyweight.codecs.palette import Palette
from flyweight.codecs.palette_frame import Frame
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.kernels.palettes.kmeans_1d import centres
from flyweight.quantizers.quantizer import Quantizer

_MOST_POINTS = 1 << 16
_ROUNDS = 40
_GOLDEN = (5**0.5 - 1) / 2


def _fill(array: Array, codec: Palette, spec: TensorSpec, importance: Array | None) -> Parts:
    frame, given = codec.frame(spec), np.asarray(array).reshape(spec.shape)
    points = _Points(codec, frame, given, None if importance is None else _weights(importance, spec))
    tables = np.zeros((prod(frame.tables), codec.entries, codec.vector))
    for (first, last), pieces in groupby(frame.pieces(), lambda piece: (piece.tables.start, piece.tables.stop)):
        places = [piece.positions for piece in pieces]
        if codec.vector == 1:
            tables[first:last, :, 0] = _scalar_tables(points, places, last - first, codec.entries)
        else:
            tables[first:last] = _vector_tables(points, places, last - first, codec.entries)
    return codec.fill(frame, given, tables)


kmeans = Quantizer("kmeans", lambda codec: isinstance(codec, Palette), _fill)


class _Points(NamedTuple):
    """The points of a tensor and their weights, read piece by piece."""

    codec: Palette
    frame: Frame
    array: Array
    weights: Array | None
    """As the array; None weighs all alike."""

    def read(self, positions: slice) -> tuple[Array, Array | None]:
        """Points (n, vector), and the mean weight of the elements of each (n,)."""
        points = self.codec.finite_points(self.frame, self.array, positions)
        if self.weights is None:
            return points, None
        return points, self.frame.points(self.weights, positions).mean(axis=1, dtype=np.float32)


def _weights(importance: Array, spec: TensorSpec) -> Array:
    wide = np.asarray(importance, np.float32)
    if not np.isfinite(wide).all() or (wide < 0).any():
        raise UnsupportedError("importance weights must be finite and not negative", code="E_IMPORTANCE")
    try:
        return np.broadcast_to(wide, spec.shape)
    except ValueError:
        raise UnsupportedError(f"importance of shape {wide.shape} does not match {spec}", code="E_IMPORTANCE") from None


# In one dimension -----------------------------------------------------------------------------


def _scalar_tables(points: _Points, places: list[slice], tables: int, entries: int) -> Array:
    """The centres of some tables that are read at once, or of one that takes several pieces. (tables, entries) float64"""
    if len(places) == 1:
        values, weights = points.read(places[0])
        return optimal_centres(values.reshape(tables, -1), None if weights is None else weights.reshape(tables, -1), entries)
    sums = _histogram(points.read(place) for place in places)
    if not sums.any():  # all without weight
        sums = _histogram((points.read(place)[0], None) for place in places)
    return _binned_centres(sums, entries)[None]


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
        out[table] = _binned_centres(_histogram([(row, pull[table] if len(pull) else None)]), clusters)
    return out


def _histogram(pieces: Iterable[tuple[Array, Array | None]]) -> Array:
    """The sums of weight and of weight · value in every bin."""
    sums = np.zeros(kernels.HISTOGRAM)
    for values, weights in pieces:
        pull = np.empty((1, 0), np.float32) if weights is None else np.ascontiguousarray(weights)[None]
        kernels.palette_histogram(np.ascontiguousarray(values).reshape(1, -1), pull, sums)
    return sums


def _binned_centres(sums: Array, clusters: int) -> Array:
    sums = sums[sums[:, 0] > 0]
    while len(sums) > _MOST_POINTS:
        even = np.concatenate([sums, np.zeros((len(sums) % 2, 2))])
        sums = even[0::2] + even[1::2]
    return centres(np.ascontiguousarray(sums[:, 0]), np.ascontiguousarray(sums[:, 1]), clusters, kernels.palette_cuts)


# In several dimensions ------------------------------------------------------------------------


def _vector_tables(points: _Points, places: list[slice], tables: int, entries: int) -> Array:
    """(tables, entries, vector) float64"""
    out = np.zeros((tables, entries, points.codec.vector))
    if len(places) == 1:
        vectors, weights = points.read(places[0])
        size = len(vectors) // tables
        for table in range(tables):
            own = slice(table * size, (table + 1) * size)
            out[table] = vector_centres(vectors[own], None if weights is None else weights[own], entries)
    else:
        out[0] = vector_centres(*_sample(points, places), entries)
    return out


def _sample(points: _Points, places: list[slice]) -> tuple[Array, Array | None]:
    """Of the points of one table in several pieces, _MOST_POINTS at equal distances."""
    per_position = points.frame.per_position
    count = (places[-1].stop - places[0].start) * per_position
    chosen = np.arange(_MOST_POINTS) * count // _MOST_POINTS
    vectors, weights = [], []
    for place in places:
        start, stop = ((position - places[0].start) * per_position for position in (place.start, place.stop))
        own = chosen[(start <= chosen) & (chosen < stop)] - start
        some, pull = points.read(place)
        vectors.append(some[own])
        if pull is not None:
            weights.append(pull[own])
    return np.concatenate(vectors), np.concatenate(weights) if weights else None


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
