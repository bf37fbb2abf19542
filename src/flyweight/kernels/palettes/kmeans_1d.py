"""K-means in one dimension: the best clusters of points on a line, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flyweight.kernels.checks import F32, F64, I32, U64, Array, check
from flyweight.kernels.registry import kernel


@kernel
def _palette_cuts(mass: Array, moment: Array, best: Array, out: Array) -> None:
    """Where k clusters of points on a line are best cut.

    With W and S the running sums of mass and moment (each begins with 0), a cluster of the points i..j−1 is worth
    (S_j − S_i)² / (W_j − W_i): what it takes off the squared error. out[r, j] is where the last of r + 1 clusters of the
    first j points begins, the first such place; `best` holds the worth of two rows. The best place never moves back
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


@kernel
def _palette_centres(
    values: Array,
    weights: Array,
    order: Array,
    workspace: Array,
    cuts: Array,
    out: Array,
) -> None:
    """The means of the best clusters of each row of values; `order`, `workspace` and `cuts` are scratch of the native twin."""
    for table, row in enumerate(values):
        distinct, place = np.unique(row + np.float32(0), return_inverse=True)
        mass = np.bincount(place, weights[table] if len(weights) else None, distinct.size).astype(np.float64)
        out[table] = centres(mass, mass * distinct, out.shape[1])


def centres(mass: Array, moment: Array, clusters: int, cut: Callable[..., None] = _palette_cuts.definition) -> Array:
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


# Checked --------------------------------------------------------------------------------------


def palette_cuts(mass: Array, moment: Array, best: Array, out: Array) -> None:
    """Where points on a line are best cut into 1, 2, … k clusters.

    mass and moment: f64 (1, points + 1), running sums from 0; best: f64 (2, points + 1), scratch; out: i32 (k, points + 1).
    """
    check("mass", mass, F64, (1, None))
    check("moment", moment, F64, mass.shape)
    check("best", best, F64, (2, mass.shape[1]), written=True)
    check("out", out, I32, (None, mass.shape[1]), written=True)
    if not 1 <= len(out) < mass.shape[1] <= 1 << 31:
        raise ValueError(f"{mass.shape[1] - 1} points cannot be cut into {len(out)} clusters")
    _palette_cuts.run(mass, moment, best, out)


def palette_centres(values: Array, weights: Array, order: Array, workspace: Array, cuts: Array, out: Array) -> None:
    """The means of the best clusters of each row of values, ascending; the last repeats where there are fewer values.

    values: f32 (tables, n), weights: f32 (tables or 0, n), 0 or more, out: f64 (tables, k). Scratch, a row for each thread that
    may work: order: u64 (threads, 2 n), workspace: f64 (threads, 6 (n + 1)), cuts: i32 (threads, k (n + 1)).
    """
    check("values", values, F32, (None, None))
    tables, count = values.shape
    check("weights", weights, F32, (0 if isinstance(weights, np.ndarray) and not len(weights) else tables, count))
    check("order", order, U64, (None, 2 * count), written=True)
    check("workspace", workspace, F64, (len(order), 6 * (count + 1)), written=True)
    check("out", out, F64, (tables, None), written=True)
    check("cuts", cuts, I32, (len(order), out.shape[1] * (count + 1)), written=True)
    if not 1 <= out.shape[1] <= 256 or count >= 1 << 31 or not 1 <= len(order) <= 256:
        raise ValueError(f"{count} values cannot be cut into {out.shape[1]} clusters")
    _palette_centres.run(values, weights, order, workspace, cuts, out)
