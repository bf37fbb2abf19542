"""K-means of vectors: near the best known quantizers, never worse than it began, and the same at every run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from flyweight.quantizers.kmeans_vectors import MOST_VECTORS, lloyd, relocate, sample, split, spread, vector_centres


def error(points: np.ndarray, centres: np.ndarray, weights: np.ndarray | None = None) -> float:
    nearest = np.min([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=0)
    return float(np.average(nearest, weights=weights))


def normal(count: int, vector: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, vector)).astype(np.float32)


def plain_lloyd(points: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Lloyd's iteration from random points, 200 rounds of it."""
    centres = points[np.random.default_rng(seed).choice(len(points), clusters, replace=False)].astype(np.float64)
    for _ in range(200):
        owner = np.argmin([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=0)
        total = np.bincount(owner, minlength=clusters)
        for axis in range(points.shape[1]):
            np.divide(np.bincount(owner, points[:, axis], clusters), total, out=centres[:, axis], where=total > 0)
    return centres


def test_sixteen_points_for_a_plane() -> None:
    """Of unit variance in each of two dimensions: the best known quantizer has 0.218 of an error of 2."""
    points = normal(70_000, 2)
    assert error(points, vector_centres(points, None, 16)) < 0.222


@pytest.mark.parametrize(("vector", "clusters"), [(2, 16), (2, 64), (3, 16), (5, 32)])
@pytest.mark.parametrize("tails", [3.0, np.inf])
def test_no_worse_than_restarts_of_lloyd(vector: int, clusters: int, tails: float) -> None:
    """Of four random starts run to the end, the best is less than 1 % ahead, and so is not worth what it takes."""
    rng = np.random.default_rng(vector)
    points = rng.standard_t(tails, (4000, vector)).astype(np.float32) if np.isfinite(tails) else normal(4000, vector)
    best = min(error(points, plain_lloyd(points, clusters, seed)) for seed in range(4))
    assert error(points, vector_centres(points, None, clusters)) < 1.01 * best


def test_a_round_never_makes_it_worse() -> None:
    points, start = normal(5000, 3), normal(32, 3, 2).astype(np.float64)
    errors = [error(points, lloyd(points, None, start, rounds)[0]) for rounds in range(1, 25)]
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(errors))
    assert errors[-1] < 0.95 * errors[0]


def test_weights_draw_centres() -> None:
    points = normal(20_000, 2)
    weights = np.where(points[:, 0] > 1, 50, 1).astype(np.float32)
    plain, weighted = vector_centres(points, None, 16), vector_centres(points, weights, 16)
    assert error(points, weighted, weights) < 0.8 * error(points, plain, weights)
    assert np.array_equal(vector_centres(points, np.zeros(20_000, np.float32), 16), plain)


def test_few_points_are_their_own_centres() -> None:
    points = np.repeat(normal(5, 2), 30, axis=0)
    centres = vector_centres(points, None, 16)
    assert {*map(tuple, centres)} == {*map(tuple, points.astype(np.float64))}
    assert np.array_equal(split(points[:1], None, 4), np.repeat(points[:1].astype(np.float64), 4, axis=0))
    assert np.array_equal(vector_centres(points[:0], None, 4), np.zeros((4, 2)))


def test_a_sample_is_in_step_with_no_row() -> None:
    """Every place of a row of 1024 is as likely to be taken."""
    chosen = spread(1 << 26, MOST_VECTORS)
    assert len(chosen) == MOST_VECTORS
    assert (np.diff(chosen) >= 0).all()
    assert np.array_equal(chosen, np.clip(chosen, 0, (1 << 26) - 1))
    shares = np.bincount(chosen % 1024, minlength=1024) / 1024
    assert np.abs(shares - 1).max() < 0.2
    assert np.array_equal(spread(100, 1000), np.arange(100))


def test_a_sample_stands_for_all_points() -> None:
    """Outliers are in it as they are, others for what is left out: the mass and the error about zero are near those of all."""
    points = normal(100_000, 2)
    points[::10_000] *= 100
    for weights in (None, np.random.default_rng(1).uniform(0, 2, 100_000).astype(np.float32)):
        some, mass = sample(points, weights, 4096)
        assert len(some) == len(mass) <= 4096
        pull = np.ones(100_000) if weights is None else weights
        assert mass.sum() == pytest.approx(pull.sum(), rel=0.02)
        assert (mass @ some**2).sum() == pytest.approx((pull @ points**2).sum(), rel=0.02)
        assert {*map(tuple, points[::10_000])} <= {*map(tuple, some)}
    assert sample(points, None, 100_000)[1] is None


def test_idle_centres_move_to_where_the_error_is() -> None:
    """Two clusters, two of four centres on top of each other in the small one: one of these goes to the large one."""
    points = np.concatenate([normal(1000, 2), normal(1000, 2, 2) * 0.01 + 50])
    centres = np.float64([[0, 0], [5, 5], [50, 50], [50.001, 50]])
    moved = relocate(points, None, centres)
    assert np.sum(np.abs(moved).max(axis=1) < 10) == 3
    assert error(points, moved) < error(points, centres)


def test_outliers_get_centres_of_their_own() -> None:
    """One point in 50,000 lies far out, and together they are most of the error."""
    points = normal(400_000, 2)
    points[::50_000] = 1000 * normal(8, 2, 3)
    assert error(points, vector_centres(points, None, 64)) < 0.2
