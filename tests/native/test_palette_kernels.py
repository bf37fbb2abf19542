"""The native palette kernels equal their NumPy definition bit for bit, on every instruction set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flyweight import kernels

SPECIAL = np.float32([0.0, -0.0, 1e-45, -1e-45, 1.17e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan])
TURNS = [(1000, 1000, 0), (7, 200, 0), (7, 103, 3), (16, 40, 5), (1, 3, 0), (33, 65, 32), (5, 5, 12)]
"""Elements of a run, those after which tables come again, and the first element."""
Fenced = Callable[..., np.ndarray]


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def defined(kernel: str, *arguments: object) -> None:
    with np.errstate(all="ignore"):
        kernels.definition(kernel)(*arguments)


@pytest.mark.parametrize("entries", [2, 4, 8, 16, 64, 256])
@pytest.mark.parametrize("vector", [1, 2, 3, 8])
def test_decode(isa: str, fenced: Fenced, entries: int, vector: int) -> None:
    """Codes too large for the table included: their upper bits are dropped."""
    rng = np.random.default_rng(entries)
    for run, cycle, start in TURNS:
        for count in (0, 1, 7, 8, 9, 31, 100):
            tables = -(-cycle // run)
            table = fenced((tables, entries * vector), np.float32, rng.choice(SPECIAL, (tables, entries * vector)))
            codes = fenced((1, count), np.uint8, rng.integers(0, 256, (1, count)))
            out, expected = fenced((1, count * vector), np.float32), np.empty((1, count * vector), np.float32)
            kernels.palette_decode(codes, table, vector, run, cycle, start, out)
            defined("palette_decode", codes, table, vector, run, cycle, start, expected)
            assert same_bits(out, expected)


@pytest.mark.parametrize("entries", [2, 4, 8, 16, 64, 256])
def test_nearest(isa: str, fenced: Fenced, entries: int) -> None:
    """Values on a midpoint, repeated midpoints, special values."""
    rng = np.random.default_rng(entries)
    for run, cycle, start in TURNS:
        for count in (0, 1, 15, 16, 17, 100):
            tables = -(-cycle // run)
            midpoints = np.sort(np.round(rng.standard_normal((tables, entries - 1)) * 8).astype(np.float32) / 8, axis=1)
            middle = fenced(midpoints.shape, np.float32, midpoints)
            values = fenced((1, count), np.float32, np.round(rng.standard_normal((1, count)) * 16) / 16)
            values[:, ::5] = rng.choice(SPECIAL, values[:, ::5].shape)
            out, expected = fenced((1, count), np.uint8), np.empty((1, count), np.uint8)
            kernels.palette_nearest(values, middle, run, cycle, start, out)
            defined("palette_nearest", values, middle, run, cycle, start, expected)
            assert same_bits(out, expected)


@pytest.mark.parametrize("vector", [1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("entries", [1, 2, 16, 256])
def test_nearest_vector(isa: str, fenced: Fenced, vector: int, entries: int) -> None:
    """Equal distances go to the first entry; where no distance is finite the code is 0."""
    rng = np.random.default_rng(vector)
    for count in (0, 1, 15, 16, 17, 65, 129):
        points = fenced((count, vector), np.float32, np.round(rng.standard_normal((count, vector)) * 4) / 4)
        points[::7] = rng.choice(SPECIAL, points[::7].shape)
        table = fenced((entries, vector), np.float32, np.round(rng.standard_normal((entries, vector)) * 4) / 4)
        out, expected = fenced((count, 1), np.uint8), np.empty((count, 1), np.uint8)
        kernels.palette_nearest_vector(points, table, 2, out)
        defined("palette_nearest_vector", points, table, 1, expected)
        assert same_bits(out, expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("vector", [1, 2, 4, 5])
def test_cluster_sums(isa: str, fenced: Fenced, vector: int, weighted: bool) -> None:
    """More points than one block of sums has, shared between threads: the sums are in the order of the points all the same."""
    rng = np.random.default_rng(vector)
    for count in (0, 1, 63, 64, 65, kernels.CLUSTER_CHUNK + 77):
        points = fenced((count, vector), np.float32, rng.standard_normal((count, vector)))
        points[::97] = rng.choice(SPECIAL, points[::97].shape)
        weights = fenced((1, count if weighted else 0), np.float32, rng.uniform(0, 2, (1, count if weighted else 0)))
        table = fenced((16, vector), np.float32, rng.standard_normal((16, vector)))
        shape = (-(-count // kernels.CLUSTER_CHUNK) * 16, vector + 2)
        out, expected = fenced(shape, np.float64), np.empty(shape)
        kernels.palette_cluster_sums(points, weights, table, 3, out)
        defined("palette_cluster_sums", points, weights, table, 1, expected)
        assert np.array_equal(np.isnan(out), np.isnan(expected))
        assert same_bits(np.nan_to_num(out), np.nan_to_num(expected))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_threads_do_not_change_the_results(isa: str, threads: int) -> None:
    rng = np.random.default_rng(1)
    points = rng.standard_normal((5 * kernels.CLUSTER_CHUNK + 3, 2)).astype(np.float32)
    table, none = rng.standard_normal((16, 2)).astype(np.float32), np.empty((1, 0), np.float32)
    codes, sums = np.empty((len(points), 1), np.uint8), np.empty((6 * 16, 4))
    kernels.palette_nearest_vector(points, table, threads, codes)
    kernels.palette_cluster_sums(points, none, table, threads, sums)
    expected = np.empty_like(codes), np.empty_like(sums)
    defined("palette_nearest_vector", points, table, 1, expected[0])
    defined("palette_cluster_sums", points, none, table, 1, expected[1])
    assert same_bits(codes, expected[0])
    assert same_bits(sums, expected[1])
    values = rng.standard_normal((40, 300)).astype(np.float32)
    means = np.empty((40, 16)), np.empty((40, 16))
    for rows, out in zip((threads, 1), means, strict=True):
        scratch = np.empty((rows, 600), np.uint64), np.empty((rows, 6 * 301)), np.empty((rows, 16 * 301), np.int32)
        kernels.palette_centres(values, np.empty((0, 300), np.float32), *scratch, out)
    assert same_bits(*means)


@pytest.mark.parametrize("weighted", [False, True])
def test_histogram(isa: str, fenced: Fenced, weighted: bool) -> None:
    """The sums are in the order of the values, onto what the bins hold; NaN and infinity have bins too."""
    rng = np.random.default_rng(1)
    values = (rng.standard_normal((1, 5000)) * 10.0 ** rng.integers(-40, 38, (1, 5000))).astype(np.float32)
    values[:, :3000] = rng.standard_normal((1, 3000)).astype(np.float16)
    values[:, ::50] = rng.choice(SPECIAL, values[:, ::50].shape)
    given = fenced(values.shape, np.float32, values)
    width = 5000 if weighted else 0
    weights = fenced((1, width), np.float32, rng.uniform(0, 2, (1, width)))
    out = fenced(kernels.HISTOGRAM, np.float64, np.ones(kernels.HISTOGRAM))
    expected = np.ones(kernels.HISTOGRAM)
    kernels.palette_histogram(given, weights, out)
    defined("palette_histogram", given, weights, expected)
    finite = ~np.isnan(expected).any(axis=1)
    assert same_bits(out[finite], expected[finite])
    assert np.isnan(out[~finite, 1]).all()


@pytest.mark.parametrize("points", [1, 2, 3, 17, 400])
def test_cuts(isa: str, fenced: Fenced, points: int) -> None:
    """Also where the worth of many cuts is equal: the points of one value, and masses lost in rounding."""
    rng = np.random.default_rng(points)
    values = np.sort(rng.standard_normal(points))
    for mass, moment in (
        (np.ones(points), values),
        (rng.uniform(0, 1, points) ** 8, values),
        (np.ones(points), np.ones(points)),
        (10.0 ** rng.integers(-20, 20, points), values),
    ):
        running = [np.concatenate([[0.0], np.cumsum(sums)]) for sums in (mass, mass * moment)]
        given = [fenced((1, points + 1), np.float64, sums) for sums in running]
        for clusters in {1, min(2, points), min(16, points), points if points < 20 else 64}:
            best, out = fenced((2, points + 1), np.float64), fenced((clusters, points + 1), np.int32)
            kernels.palette_cuts(*given, best, out)
            expected = np.empty((2, points + 1)), np.empty((clusters, points + 1), np.int32)
            defined("palette_cuts", *given, *expected)
            assert same_bits(out, expected[1])
            assert same_bits(best, expected[0])
