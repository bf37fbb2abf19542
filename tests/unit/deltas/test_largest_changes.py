"""The largest changes: those that sorting finds, whatever the sample says, in the memory of a few ranges."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas.largest_changes import Changes, Largest
from flyweight.foundation.errors import UnsupportedError


def changes_of(base: np.ndarray, tuned: np.ndarray) -> Changes:
    return Changes(lambda start, stop: base[start:stop], lambda start, stop: tuned[start:stop], len(base))


def check_largest(base: np.ndarray, tuned: np.ndarray, count: int) -> None:
    """Against a stable sort of all magnitudes."""
    delta = tuned.astype(np.float32) - base.astype(np.float32)
    expected = np.sort(np.argsort(-np.abs(delta), kind="stable")[:count])
    largest = Largest(changes_of(base, tuned), count)
    places, values = zip(*((kept.places[0].copy(), kept.values[0].copy()) for kept in largest), strict=True)
    assert np.array_equal(np.concatenate(places), expected)
    assert np.array_equal(np.concatenate(values), delta[expected])
    assert largest.greatest == np.abs(delta).view(np.uint32).max()
    others = np.delete(delta, expected)
    assert largest.rest.tolist() == [others.min(initial=np.inf), others.max(initial=-np.inf)]


@settings(deadline=None, max_examples=60)
@given(
    size=st.sampled_from([1, 2, 7, 64, 1000, 16384, 70_000]),
    share=st.floats(0, 1),
    spread=st.sampled_from([0.0, 1e-40, 1e-3, 1e30]),
    dtype=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
    seed=st.integers(0, 2**32),
)
def test_they_are_those_a_sort_finds(size: int, share: float, spread: float, dtype: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.normal(size=size).astype(np.float32)
    if spread != 1e-3:
        base[...] = 0
    tuned = (base + rng.normal(0, 1, size) * spread).astype(np.float32)
    if dtype is np.float16 and spread == 1e30:
        dtype = np.float32  # it would be infinite
    check_largest(base.astype(dtype), tuned.astype(dtype), max(1, int(size * share)))


def test_they_are_found_in_many_ranges_and_in_two_types() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=8 * CHUNK + 5).astype(ml_dtypes.bfloat16)
    tuned = (base.astype(np.float32) + rng.normal(0, 1e-3, len(base))).astype(np.float32)
    for count in (1, len(base) // 10, len(base) - 1, len(base)):
        check_largest(base, tuned, count)
        check_largest(base, tuned.astype(ml_dtypes.bfloat16), count)


@pytest.mark.parametrize("sampled", [0.0, 100.0])
def test_a_sample_that_misleads_costs_time_alone(sampled: float) -> None:
    """All of the sample is unlike the rest."""
    rng = np.random.default_rng(1)
    base, tuned = np.zeros(1 << 20, np.float32), rng.normal(size=1 << 20).astype(np.float32)
    seen: list[slice] = []

    def watched(start: int, stop: int) -> np.ndarray:
        seen.append(slice(start, stop))
        return tuned[start:stop]

    assert Changes(lambda start, stop: base[start:stop], watched, len(base)).sample().size
    for part in seen:
        tuned[part] = sampled
    for count in (100, len(base) // 10, len(base) // 2):
        check_largest(base, tuned, count)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_the_remedy(value: float) -> None:
    base, tuned = np.zeros(100, np.float32), np.zeros(100, np.float32)
    tuned[77] = value
    with pytest.raises(UnsupportedError, match=r"NaN or infinite.*strategy exact") as refused:
        Largest(changes_of(base, tuned), 3)
    assert refused.value.code == "E_DELTA_VALUES"


def test_they_take_the_memory_of_some_ranges() -> None:
    """Of 2²⁴ changes, which are 64 MB: 16 MB are for counting, and a few more for the ranges."""
    tile = np.random.default_rng(2).normal(size=2 * CHUNK).astype(np.float32)

    def tuned(start: int, stop: int) -> np.ndarray:
        return tile[start % CHUNK : start % CHUNK + stop - start]

    zeros = np.zeros(CHUNK, np.float32)
    changes = Changes(lambda start, stop: zeros[: stop - start], tuned, 1 << 24)
    tracemalloc.start()
    kept = sum(each.places.shape[1] for each in Largest(changes, (1 << 24) // 10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept == (1 << 24) // 10
    assert peak < 24 << 20
