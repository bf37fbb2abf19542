"""K-means in several dimensions: good centres, not the best.

Seeds come from splitting: the cluster with the greatest error along a coordinate is cut at its mean, until there are enough.
Lloyd's iteration follows, on a sample and then on all points, with momentum: a round goes beyond the means by a share of what
the last one moved them, and without it where the error grew (docs/decisions/0196).
"""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array

MOST_VECTORS = 1 << 20
"""Points that centres are found from. With 256 centres, leaving the others out costs 256 / 2^20 of the error."""
_SAMPLE, _SAMPLE_ROUNDS, _ROUNDS = 1 << 16, 30, 12
_MOMENTUM = 0.9
_SETTLED = 1e-4
"""A round that takes less than this share off the error is the last."""
_GOLDEN = (5**0.5 - 1) / 2


def vector_centres(points: Array, weights: Array | None, clusters: int) -> Array:
    """The centres of f32 points (n, vector) that weigh what is given, or alike. (clusters, vector) float64"""
    if not len(points):
        return np.zeros((clusters, points.shape[1]))
    if weights is not None and not weights.any():
        weights = None
    points, weights = _some(points, weights, MOST_VECTORS)
    few, their_weights = _some(points, weights, _SAMPLE)
    centres = lloyd(few, their_weights, split(few, their_weights, clusters), _SAMPLE_ROUNDS)
    return lloyd(points, weights, centres, _ROUNDS) if len(points) > len(few) else centres


def spread(size: int, most: int) -> Array:
    """Ascending places of `most` out of `size` elements: a golden-ratio sequence, which is in step with no row length."""
    if size <= most:
        return np.arange(size)
    return np.sort(((np.arange(1, most + 1) * _GOLDEN) % 1 * size).astype(np.int64))


def _some(points: Array, weights: Array | None, most: int) -> tuple[Array, Array | None]:
    if len(points) <= most:
        return np.ascontiguousarray(points), weights
    chosen = spread(len(points), most)
    return points[chosen], None if weights is None else weights[chosen]


def split(points: Array, weights: Array | None, clusters: int) -> Array:
    """The means of clusters that are split one after the other; where all points of each are equal, the last repeats."""
    wide = points.astype(np.float64)
    mass = np.ones(len(wide)) if weights is None else weights.astype(np.float64)
    made = count()

    def cluster(own: Array) -> tuple[float, int, Array, Array, Array]:
        """In the order of a heap, the greatest error first: its points, whether each lies above the mean, and the mean."""
        weight, some = mass[own, None], wide[own]
        total = weight.sum()
        mean = (weight * some).sum(axis=0) / total if total else some.mean(axis=0)
        error = (weight * (some - mean) ** 2).sum(axis=0)
        axis = int(error.argmax())
        return -float(error[axis]), next(made), own, some[:, axis] > mean[axis], mean

    heap = [cluster(np.arange(len(wide)))]
    while len(heap) < clusters:
        _, _, own, above, _ = heap[0]
        if not above.any():
            break
        heapq.heapreplace(heap, cluster(own[above]))
        heapq.heappush(heap, cluster(own[~above]))
    means = np.stack([mean for *_, mean in heap])
    return np.concatenate([means, np.repeat(means[-1:], clusters - len(means), axis=0)])


def lloyd(points: Array, weights: Array | None, centres: Array, rounds: int) -> Array:
    """Better centres than these. (clusters, vector) float64"""
    best, least = centres, np.inf
    here, before = centres, None
    for _ in range(rounds):
        sums = _cluster_sums(points, weights, here)
        error = sums[:, -1].sum()
        if error > least:
            if before is None:  # without momentum, by rounding alone
                break
            here, before = best, None
            continue
        means, used = here.copy(), sums[:, 0] > 0  # a centre without points stays
        means[used] = sums[used, 1:-1] / sums[used, :1]
        settled = error > least * (1 - _SETTLED)
        best, least = means, error
        if settled:
            break
        here = means if before is None else means + _MOMENTUM * (means - before) * used[:, None]
        before = means
    return best


def _cluster_sums(points: Array, weights: Array | None, centres: Array) -> Array:
    """Weight, weight · point and weight · squared distance of each cluster. (clusters, vector + 2)"""
    clusters, vector = centres.shape
    sums = np.empty((-(-len(points) // kernels.CLUSTER_CHUNK) * clusters, vector + 2))
    pull = np.empty((1, 0), np.float32) if weights is None else np.ascontiguousarray(weights)[None]
    kernels.palette_cluster_sums(points, pull, np.ascontiguousarray(centres, np.float32), kernels.PALETTE_THREADS, sums)
    total: Array = sums.reshape(-1, clusters, vector + 2).sum(axis=0)
    return total
