"""The kmeans quantizer: optimal on a line (against every partition, and against Lloyd), repeatable in space."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight import kernels
from flyweight.codecs.affine import Affine
from flyweight.codecs.palette import Palette
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from flyweight.quantizers.kmeans import optimal_centres
from support.importance import weighing

kmeans = QUANTIZERS["kmeans"]


def on_one_line(values: np.ndarray, weights: np.ndarray | None, clusters: int) -> np.ndarray:
    return optimal_centres(values[None], None if weights is None else weights[None], clusters)[0]


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def cost(values: np.ndarray, weights: np.ndarray | None, centres: np.ndarray) -> float:
    apart = np.abs(values.astype(np.float64)[:, None] - centres).min(axis=1)
    return float((apart**2 * (1 if weights is None else weights.astype(np.float64))).sum())


def least_cost(values: np.ndarray, weights: np.ndarray, clusters: int) -> float:
    """Of every way to cut the sorted values."""
    order = np.argsort(values)
    x, w = values[order].astype(np.float64), weights[order].astype(np.float64)

    def within(start: int, stop: int) -> float:
        total = w[start:stop].sum()
        mean = (w[start:stop] * x[start:stop]).sum() / total if total else 0.0
        return float((w[start:stop] * (x[start:stop] - mean) ** 2).sum())

    return min(
        sum(within(a, b) for a, b in zip((0, *cuts), (*cuts, len(x)), strict=True))
        for cuts in combinations(range(1, len(x)), min(clusters, len(x)) - 1)
    )


@given(
    st.lists(st.tuples(st.integers(-40, 40), st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0, 50.0])), min_size=1, max_size=11),
    st.sampled_from([2, 4]),
    st.sampled_from([0.0, 1000.0]),
)
@settings(max_examples=150, deadline=None)
def test_no_partition_is_better(points: list[tuple[int, float]], clusters: int, offset: float) -> None:
    values = np.float32([value / 8 + offset for value, _ in points])
    weights = np.float32([weight for _, weight in points])
    if not weights.any():
        weights[:] = 1
    centres = on_one_line(values, weights, clusters)
    assert (np.diff(centres) >= 0).all()
    assert cost(values, weights, centres) <= least_cost(values, weights, clusters) + 1e-9 * (1 + abs(offset))


@pytest.mark.parametrize("clusters", [2, 4, 16, 64])
def test_lloyd_never_does_better(clusters: int) -> None:
    rng = np.random.default_rng(clusters)
    values = rng.standard_t(4, 3000).astype(np.float32)
    best = cost(values, None, on_one_line(values, None, clusters))
    for _ in range(8):
        centres = np.sort(rng.choice(values, clusters, replace=False)).astype(np.float64)
        for _ in range(60):
            owner = np.searchsorted((centres[:-1] + centres[1:]) / 2, values)
            total = np.bincount(owner, minlength=clusters)
            centres = np.where(total > 0, np.bincount(owner, values, clusters) / np.maximum(total, 1), centres)
        assert best <= cost(values, None, centres) * (1 + 1e-12)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_bins_lose_nothing_of_half_precision(kind: str) -> None:
    """Above 65,536 weights a table is found from a histogram; for f16 and bf16 it is that of the distinct values."""
    values = (
        np.random.default_rng(5)
        .standard_normal(70_000)
        .astype(np.float32)
        .astype(DType.parse(kind.replace("float", "f")).numpy)
    )
    values = values.astype(np.float32)
    distinct, counts = np.unique(values, return_counts=True)
    assert np.allclose(on_one_line(values, None, 16), on_one_line(distinct, counts.astype(np.float32), 16), rtol=1e-12, atol=0)


def test_full_precision_is_cut_between_bins() -> None:
    values = np.random.default_rng(6).standard_normal(70_000).astype(np.float32)
    exact = cost(values[:65_536], None, on_one_line(values[:65_536], None, 16)) / 65_536
    binned = cost(values, None, on_one_line(values, None, 16)) / 70_000
    assert binned <= exact * 1.02


def test_more_bins_than_fit_are_joined() -> None:
    """Values of every magnitude fill more than 65,536 bins."""
    rng = np.random.default_rng(7)
    values = (rng.choice([-1, 1], 300_000) * 10.0 ** rng.uniform(-30, 0, 300_000)).astype(np.float32)
    centres = on_one_line(values, None, 4)
    assert (np.diff(centres) >= 0).all()
    assert cost(values, None, centres) < 0.2 * cost(values, None, np.zeros(1))


def test_few_values_are_kept_exactly() -> None:
    values = np.random.default_rng(8).choice(np.float16([-1.5, 0.0, 0.25, 3.0]), (20, 30))
    for codec in (Palette(2), Palette(4, 5), Palette(8, 0, 0, 2)):
        assert np.array_equal(codec.decode(f32(20, 30), kmeans(values, codec, f32(20, 30))), values)


def test_importance_moves_the_table() -> None:
    values = np.random.default_rng(9).standard_normal((64, 32)).astype(np.float32)
    importance = np.where(np.arange(32) < 4, 100.0, 1.0)
    codec, spec = Palette(2, table="f32"), f32(64, 32)

    def errors(parts: object) -> float:
        return float((importance * (codec.decode(spec, parts) - values) ** 2).sum())

    plain, weighted = kmeans(values, codec, spec), kmeans(values, codec, spec, weighing(importance))
    assert errors(weighted) < errors(plain)
    vectors = Palette(4, 0, 0, 2)
    assert vectors.check_values(spec, kmeans(values, vectors, spec, weighing(importance))) is None
    zero = kmeans(values, codec, spec, weighing(np.zeros(32)))
    assert all(np.array_equal(zero[part], plain[part]) for part in plain)


@pytest.mark.parametrize(
    "importance", [np.float32([-1.0] * 8), np.float32([np.nan] * 8), np.ones(7)], ids=["negative", "NaN", "shape"]
)
def test_bad_importance(importance: np.ndarray) -> None:
    with pytest.raises(UnsupportedError) as caught:
        kmeans(np.zeros((4, 8)), Palette(4), f32(4, 8), weighing(importance))
    assert caught.value.code == "E_IMPORTANCE"


def test_other_codecs_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        kmeans(np.zeros((4, 8)), Affine(), f32(4, 8))
    assert caught.value.code == "E_QUANTIZER"


def test_vectors_beat_scalars_at_equal_size_where_weights_are_related() -> None:
    rng = np.random.default_rng(10)
    first = rng.standard_normal((64, 64))
    values = np.stack([first, first + rng.standard_normal((64, 64)) / 8], axis=2).reshape(64, 128).astype(np.float32)

    def error(codec: Palette) -> float:
        return float(np.mean((codec.decode(f32(64, 128), kmeans(values, codec, f32(64, 128))) - values) ** 2))

    assert error(Palette(4, 0, 0, 2)) < 0.5 * error(Palette(2))


def test_every_kernel_set_gives_the_same_bytes() -> None:
    rng = np.random.default_rng(11)
    values = rng.standard_normal((300, 256)).astype(np.float32)
    before = kernels.active()
    try:
        for codec in (Palette(4), Palette(3, 100, table="f32"), Palette(4, 0, 0, 2, 0)):
            made = []
            for name in kernels.available():
                kernels.use(name)
                made.append(kmeans(values, codec, f32(300, 256)))
            assert all(np.array_equal(parts[part], made[0][part]) for parts in made for part in made[0])
    finally:
        kernels.use(before)


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_do_not_change_the_bytes(threads: int) -> None:
    rng = np.random.default_rng(13)
    tensors = [rng.standard_normal((40, 64)).astype(np.float32) for _ in range(8)]
    for codec in (Palette(4), Palette(4, 8, 0, 2)):
        alone = [kmeans(values, codec, f32(40, 64)) for values in tensors]
        with ThreadPoolExecutor(threads) as pool:
            together = list(pool.map(lambda values, c=codec: kmeans(values, c, f32(40, 64)), tensors))
        assert all(np.array_equal(a[part], b[part]) for a, b in zip(alone, together, strict=True) for part in a)


def test_a_table_in_several_pieces() -> None:
    """More than 2^20 weights of a table are read piece by piece: it is that of all of them, with importance and without; zeros
    throughout count as none."""
    rng = np.random.default_rng(12)
    values = rng.standard_normal((1200, 1000)).astype(np.float16)
    spec, importance = f32(1200, 1000), rng.uniform(0.5, 2, 1000)
    assert len([*Palette(4).frame(spec).pieces()]) == 2
    whole = optimal_centres(values.astype(np.float32).reshape(1, -1), None, 16).astype(np.float16)
    assert np.array_equal(kmeans(values, Palette(4), spec)["tables"].reshape(1, -1), whole)
    pull = np.broadcast_to(importance.astype(np.float32), values.shape).reshape(1, -1)
    weighted = optimal_centres(values.astype(np.float32).reshape(1, -1), pull, 16).astype(np.float16)
    assert np.array_equal(kmeans(values, Palette(4), spec, weighing(importance))["tables"].reshape(1, -1), weighted)
    assert np.array_equal(kmeans(values, Palette(4), spec, weighing(np.zeros(1000)))["tables"].reshape(1, -1), whole)


def test_groups_whose_last_is_short() -> None:
    """23 rows or columns in groups of 4: each table is that of its own weights alone."""
    values = np.random.default_rng(14).standard_normal((23, 23)).astype(np.float16)
    for axis in (0, 1):
        codec = Palette(3, 4, axis, table="f32")
        decoded = codec.decode(f32(23, 23), kmeans(values, codec, f32(23, 23)))
        for start in range(0, 23, 4):
            own = values[start : start + 4] if axis == 0 else values[:, start : start + 4]
            alone, single = Palette(3, table="f32"), f32(*own.shape)
            expected = alone.decode(single, kmeans(own, alone, single))
            assert np.array_equal(decoded[start : start + 4] if axis == 0 else decoded[:, start : start + 4], expected)
