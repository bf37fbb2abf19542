"""`kmeans`: the palette with the least squared error, weighted by importance where it is given.

Scalar tables are optimal, by dynamic programming over the sorted distinct values of a table (`kernels.palette_cuts`):

- a table of at most 65,536 weights: over its values as they are;
- a larger one: over the sums of bins that hold f32 values equal to 11 significant bits. A bin holds one value where the
  weights came from f16 or bf16; otherwise clusters are cut between bins. More than 65,536 bins are joined in
  neighbouring pairs.

Vector tables are not, see `kmeans_vectors`. The weight of a vector is the mean of its elements' weights.

Weights are read a piece at a time and widened no sooner. Entries are then rounded to their stored type, and codes chosen anew
against them. Nothing is random and all sums run in one order, so the bytes are the same on every machine.
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
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.kernels.palettes.kmeans_1d import centres
from flyweight.quantizers.kmeans_vectors import MOST_VECTORS, sample, vector_centres
from flyweight.quantizers.quantizer import Quantizer

_MOST_POINTS = 1 << 16


def _fill(array: Array, codec: Palette, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    frame, given = codec.frame(spec), np.asarray(array).reshape(spec.shape)
    points = _Points(codec, frame, given, None if inputs is None else _weights(inputs.importance, spec))
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
        threads = min(kernels.PALETTE_THREADS, tables) or 1
        order, workspace = np.empty((threads, 2 * count), np.uint64), np.empty((threads, 6 * (count + 1)))
        cuts = np.empty((threads, clusters * (count + 1)), np.int32)
        kernels.palette_centres(np.ascontiguousarray(values), pull, order, workspace, cuts, out)
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
    """The same of vectors. (tables, entries, vector) float64"""
    if len(places) > 1:
        return vector_centres(*_sample(points, places), entries)[None]
    vectors, weights = points.read(places[0])
    out = np.zeros((tables, entries, points.codec.vector))
    for table, own in enumerate(np.split(np.arange(len(vectors)), tables)):
        part = slice(own[0], own[-1] + 1)
        out[table] = vector_centres(vectors[part], None if weights is None else weights[part], entries)
    return out


def _sample(points: _Points, places: list[slice]) -> tuple[Array, Array | None]:
    """Of the points of one table in several pieces, as many as are worth looking at, each piece its share."""
    positions = places[-1].stop - places[0].start
    shares = (MOST_VECTORS * (place.stop - place.start) // positions for place in places)
    pieces = [sample(*points.read(place), share) for place, share in zip(places, shares, strict=True)]
    weights = [np.ones(len(some), np.float32) if weight is None else weight for some, weight in pieces]
    return np.concatenate([some for some, _ in pieces]), np.concatenate(weights)
