"""K-means in several dimensions: good centres, not the best.

Seeds come from splitting: the cluster with the greatest error along a coordinate is cut at its mean, until there are enough.
Lloyd's iteration follows, with momentum: a round goes beyond the means by a share of what the last one moved them, and without
it where the error grew. Centres that are of little use are then moved to where the error is greatest, as long as that helps.
All this is done on a sample, and some more rounds on all points (docs/decisions/0196).
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
_MOVES, _ROUNDS_AFTER_MOVES = 6, 10
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
    points, weights = sample(points, weights, MOST_VECTORS)
    few, their_weights = sample(points, weights, _SAMPLE)
    centres, error = lloyd(few, their_weights, split(few, their_weights, clusters), _SAMPLE_ROUNDS)
    for _ in range(_MOVES):
        moved, after = lloyd(few, their_weights, relocate(few, their_weights, centres), _ROUNDS_AFTER_MOVES)
        if after >= error:
            break
        centres, error = moved, after
    return lloyd(points, weights, centres, _ROUNDS)[0] if len(points) > len(few) else centres


def sample(points: Array, weights: Array | None, most: int) -> tuple[Array, Array | None]:
    """At most so many points, and weights to stand for all of them.

    A quarter are those farthest from zero, as they are: a few outliers can make up most of the error, and chance misses them.
    """
    if len(points) <= most:
        return np.ascontiguousarray(points), weights
    mass = np.ones(len(points), np.float32) if weights is None else weights
    size = mass * (points**2).sum(axis=1)
    far = size > np.partition(size, len(size) - most // 4)[len(size) - most // 4]
    others = np.flatnonzero(~far)
    near = others[spread(len(others), most - most // 4)]
    kept = np.flatnonzero(far)
    grown = mass[near] * np.float32(len(others) / len(near))
    return points[np.concatenate([kept, near])], np.concatenate([mass[kept], grown])


def spread(size: int, most: int) -> Array:
    """Ascending places of `most` out of `size` elements: a golden-ratio sequence, which is in step with no row length."""
    if size <= most:
        return np.arange(size)
    return np.sort(((np.arange(1, most + 1) * _GOLDEN) % 1 * size).astype(np.int64))


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


def lloyd(points: Array, weights: Array | None, centres: Array, rounds: int) -> tuple[Array, float]:
    """Better centres than these, (clusters, vector) float64, and an error that they have at most."""
    best, least = centres, np.inf
    here, before = centres, None
    for _ in range(rounds):
        sums = _cluster_sums(points, weights, here)
        error = float(sums[:, -1].sum())
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
    return best, least


def relocate(points: Array, weights: Array | None, centres: Array) -> Array:
    """The centres, of which those that cost least to do without are moved beside those with the greatest error.

    Without a centre its points fall to the nearest other one. Beside another it takes 1.5 / vector off that one's error: 3/4 in
    one of `vector` directions, and as much again because the neighbours move too.
    """
    clusters, vector = centres.shape
    sums = _cluster_sums(points, weights, centres)
    mass, gain = sums[:, 0], 1.5 / vector * sums[:, -1]
    apart = ((centres[:, None] - centres[None]) ** 2).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    both = np.maximum(mass + mass[nearest], np.finfo(np.float64).tiny)
    cost = mass * mass[nearest] / both * apart[np.arange(clusters), nearest]
    moved, taken = centres.copy(), np.zeros(clusters, bool)
    for idle, busy in zip(np.argsort(cost, kind="stable"), np.argsort(-gain, kind="stable"), strict=True):
        heir = nearest[idle]
        if cost[idle] >= gain[busy]:
            break
        if len({idle, busy, heir}) < 3 or taken[[idle, busy, heir]].any():
            continue
        taken[[idle, busy, heir]] = True
        moved[heir] = (mass[idle] * centres[idle] + mass[heir] * centres[heir]) / both[idle]
        outwards = centres[busy] - centres[nearest[busy]]
        length = np.sqrt((outwards**2).sum())
        step = outwards / length * np.sqrt(sums[busy, -1] / (mass[busy] * vector) / 2) if length else outwards
        moved[idle], moved[busy] = centres[busy] + step, centres[busy] - step
    return moved


def _cluster_sums(points: Array, weights: Array | None, centres: Array) -> Array:
    """Weight, weight · point and weight · squared distance of each cluster. (clusters, vector + 2)"""
    clusters, vector = centres.shape
    sums = np.empty((-(-len(points) // kernels.CLUSTER_CHUNK) * clusters, vector + 2))
    pull = np.empty((1, 0), np.float32) if weights is None else np.ascontiguousarray(weights)[None]
    kernels.palette_cluster_sums(points, pull, np.ascontiguousarray(centres, np.float32), kernels.PALETTE_THREADS, sums)
    total: Array = sums.reshape(-1, clusters, vector + 2).sum(axis=0)
    return total
