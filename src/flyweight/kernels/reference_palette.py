"""The definition of the palette kernels, in NumPy: look-up, nearest entry, histogram, and the best clusters of a line.

Elements of a flat run belong to tables in turn: element i of a call that starts at `start` has table (start + i) // run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__: list[str] = []  # named by `flyweight.kernels.KERNELS`

Array = np.ndarray[Any, Any]

BIN_SHIFT = 13
"""Bits of an f32 that its bin ignores: sign, 8 bits of exponent and 10 of mantissa stay, enough for any f16 or bf16."""


def palette_decode(codes: Array, tables: Array, vector: int, run: int, start: int, out: Array) -> None:
    """The `vector` values of each code. Bits of a code above the table's size are dropped."""
    count, entries = codes.shape[1], tables.shape[1] // vector
    owner = (start + np.arange(count)) // run
    code = codes[0] & np.uint8(entries - 1)
    out.reshape(count, vector)[...] = tables.reshape(-1, entries, vector)[owner, code]


def palette_nearest(values: Array, midpoints: Array, run: int, start: int, out: Array) -> None:
    """How many midpoints of its table (ascending) lie below each value: on a midpoint the lower code; NaN gives 0."""
    for at, end, table in _pieces(values.shape[1], run, start):
        out[0, at:end] = np.searchsorted(midpoints[table], values[0, at:end], side="left")
    out[np.isnan(values)] = 0


def palette_nearest_vector(points: Array, table: Array, out: Array) -> None:
    """The first entry at the least squared distance; the squares are summed in order, rounded to f32 one by one."""
    least = np.full(len(points), np.inf, np.float32)
    out[...] = 0
    for code, entry in enumerate(table):
        apart = points - entry
        distance = apart[:, 0] * apart[:, 0]
        for axis in range(1, points.shape[1]):
            distance += apart[:, axis] * apart[:, axis]
        nearer = distance < least
        least[nearer] = distance[nearer]
        out[nearer] = code


def palette_histogram(values: Array, weights: Array, out: Array) -> None:
    """Adds each value's weight and weight · value (f64, in order) to its bin; without weights each counts one.

    Bins ascend as the values do; both zeros share one.
    """
    bits = (values[0] + np.float32(0)).view(np.uint32)
    bins = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)) >> BIN_SHIFT
    mass = weights[0].astype(np.float64) if weights.size else np.ones(bins.size)
    np.add.at(out[:, 0], bins, mass)
    np.add.at(out[:, 1], bins, mass * values[0])


def palette_cuts(mass: Array, moment: Array, best: Array, out: Array) -> None:
    """Where k clusters of points on a line are best cut.

    With W and S the running sums of mass and moment (each begins with 0), a cluster of the points i..j−1 is worth
    (S_j − S_i)² / (W_j − W_i): what it takes off the squared error. out[r, j] is where the last of r + 1 clusters of the
    first j points begins, the first such place; `best` is room for the worth of two rows. The best place never moves back
    as j grows, nor as clusters are added, so a row is filled by strides that halve: the places either side of j and the one
    above bound its own.
    """
    weight, pull, points = mass[0], moment[0], mass.shape[1] - 1
    out[...] = 0
    best[...] = 0
    best[0] = _worth(weight[0], pull[0], weight, pull)
    for row in range(1, out.shape[0]):
        before, after = best[(row + 1) % 2], best[row % 2]
        count = points - row
        stride = 1 << (count - 1).bit_length()
        while stride:
            at = np.arange(stride, count + 1, 2 * stride)
            j = row + at
            bound = np.where(at + stride <= count, out[row, np.minimum(j + stride, points)], points - 1)
            last = np.minimum(bound, j - 1)
            first = np.maximum(np.where(at > stride, out[row, j - stride], row), out[row - 1, j])
            first = np.minimum(first, last)
            lengths = last - first + 1
            starts = np.cumsum(lengths) - lengths
            i, each = np.arange(lengths.sum()) - np.repeat(starts - first, lengths), np.repeat(j, lengths)
            worth = before[i] + _worth(weight[i], pull[i], weight[each], pull[each])
            after[j] = np.maximum.reduceat(worth, starts)
            reached = np.flatnonzero(worth == np.repeat(after[j], lengths))
            out[row, j] = i[reached[np.searchsorted(reached, starts)]]
            stride //= 2


def palette_centres(
    values: Array,
    weights: Array,
    order: Array,  # noqa: ARG001
    room: Array,  # noqa: ARG001
    cuts: Array,  # noqa: ARG001
    out: Array,
) -> None:
    """The means of the best clusters of each row of values; `order`, `room` and `cuts` are scratch of the native twin."""
    for table, row in enumerate(values):
        distinct, place = np.unique(row + np.float32(0), return_inverse=True)
        mass = np.bincount(place, weights[table] if len(weights) else None, distinct.size).astype(np.float64)
        out[table] = centres(mass, mass * distinct, out.shape[1])


def centres(mass: Array, moment: Array, clusters: int, cut: Callable[..., None] = palette_cuts) -> Array:
    """The means of the best clusters of ascending points, given by weight and weight · value; the last one repeats where
    there are fewer points. A point that weighs nothing is none. All sums run in order. (clusters,) f64"""
    mass, moment = mass[mass > 0], moment[mass > 0]
    if mass.size > clusters:
        owner = _owners(mass, moment, clusters, cut)
        mass, moment = np.bincount(owner, mass), np.bincount(owner, moment)
    means = np.zeros(clusters)
    if mass.size:
        means[: mass.size] = moment / mass
        means[mass.size :] = means[mass.size - 1]
    return means


def _owners(mass: Array, moment: Array, clusters: int, cut: Callable[..., None]) -> Array:
    """The cluster of each point, by the best cuts."""
    points = mass.size
    centred = moment - mass * (np.cumsum(moment)[-1] / np.cumsum(mass)[-1])  # small sums keep their digits
    weight, pull = (np.concatenate([[0.0], np.cumsum(sums)])[None] for sums in (mass, centred))
    cuts = np.empty((clusters, points + 1), np.int32)
    cut(weight, pull, np.empty((2, points + 1)), cuts)
    owner = np.zeros(points, np.int64)
    end = points
    for cluster in range(clusters - 1, 0, -1):
        end = cuts[cluster, end]
        owner[end] = 1
    return np.cumsum(owner)


def _worth(weight_i: Array, pull_i: Array, weight_j: Array, pull_j: Array) -> Array:
    weight, pull = weight_j - weight_i, pull_j - pull_i
    return np.asarray(np.divide(pull * pull, weight, out=np.zeros_like(weight), where=weight > 0))


def _pieces(count: int, run: int, start: int) -> list[tuple[int, int, int]]:
    """(first, end, table) of the elements that share a table."""
    tables = range(start // run, -(-(start + count) // run))
    return [(max(table * run - start, 0), min(table * run + run - start, count), table) for table in tables]
