"""The sampler: its filters against plain definitions, its draws against their probabilities, its refusals."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flyweight.foundation.errors import MalformedError
from flyweight.runtime.sample import Sampler

ROWS = npst.arrays(np.float32, st.integers(1, 40), elements=st.integers(-3, 3).map(lambda i: i / 2))


def row(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def allowed(logits: np.ndarray[Any, Any], k: int, p: float, m: float) -> set[int]:
    """The docstring, word for word: sort everything, best first, the lower id first of equals."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: k or len(logits)]
    weights = [float(np.exp(np.float64(logits[i]) - np.float64(logits.max()))) for i in order]
    total, kept = sum(weights), len(order)
    if p < 1:
        sums = np.cumsum(weights)
        kept = next((i + 1 for i in range(len(order)) if sums[i] >= p * total * (1 - 1e-12)), len(order))
    return {i for i, w in zip(order[:kept], weights[:kept], strict=True) if w >= m}


@given(ROWS, st.integers(0, 45), st.sampled_from([0.1, 0.37, 0.5, 0.93, 1.0]), st.sampled_from([0.0, 0.2, 0.7, 1.0]))
def test_only_what_the_filters_leave_is_drawn(logits: np.ndarray[Any, Any], k: int, p: float, m: float) -> None:
    sampler = Sampler(temperature=50.0, top_k=k, top_p=p, min_p=m, seed=1)
    assert {sampler(logits) for _ in range(20)} <= allowed(logits, k, p, m)
    assert set(sampler._allowed(logits, float(logits.max())).tolist()) == allowed(logits, k, p, m)


def test_a_nucleus_wider_than_the_first_look() -> None:
    logits = np.linspace(0, 0.01, 5000, dtype=np.float32)
    kept = Sampler(temperature=1, top_p=0.9)._allowed(logits, float(logits.max()))
    assert set(kept.tolist()) == allowed(logits, 0, 0.9, 0)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert Sampler()(row(1, 5, 5, 2)) == 1
    assert Sampler(temperature=3, top_k=1)(row(1, 5, 5, 2)) == 1


def test_the_penalty_divides_what_is_above_zero_and_multiplies_what_is_below() -> None:
    logits = row(4, 3, -1, -1.5)
    before = logits.copy()
    assert Sampler(repetition_penalty=2)(logits, [0]) == 1
    assert Sampler(repetition_penalty=2)(row(-1, -1.5), [0, 0, 0]) == 1
    assert np.array_equal(logits, before)
    with pytest.raises(ValueError, match="history"):
        Sampler(repetition_penalty=2)(logits, [4])


def test_draws_have_their_probabilities() -> None:
    """4000 draws: each count within five standard deviations of its expectation."""
    logits, temperature, n = row(0, 1, 2, -1), 0.7, 4000
    sampler = Sampler(temperature=temperature, seed=3)
    counts = np.bincount([sampler(logits) for _ in range(n)], minlength=4)
    p = np.exp(logits.astype(float) / temperature)
    p /= p.sum()
    assert (abs(counts - n * p) <= 5 * np.sqrt(n * p * (1 - p))).all()


def test_a_seed_gives_the_same_tokens_everywhere() -> None:
    logits = np.sin(np.arange(300, dtype=np.float64)).astype(np.float32) * 4
    sampler = Sampler(temperature=0.9, top_k=50, seed=42)
    drawn = [sampler(logits) for _ in range(12)]
    again = Sampler(temperature=0.9, top_k=50, seed=42)
    assert drawn == [again(logits) for _ in range(12)]
    assert drawn == [247, 58, 259, 121, 115, 133, 58, 20, 259, 228, 108, 14]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(value: float, temperature: float) -> None:
    with pytest.raises(MalformedError) as caught:
        Sampler(temperature=temperature)(row(0, value, 1))
    assert caught.value.code == "E_LOGITS"
    with pytest.raises(MalformedError):
        Sampler(temperature=temperature)(row(-np.inf, -np.inf))


def test_tokens_ruled_out_are_never_drawn() -> None:
    sampler = Sampler(temperature=5)
    assert {sampler(row(-np.inf, 0, -np.inf, 0)) for _ in range(50)} == {1, 3}


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"seed": -1},
    ],
)
def test_settings_out_of_range(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampler(**bad)
    with pytest.raises(ValueError, match="one row"):
        Sampler()(np.zeros((2, 2), np.float32))


def test_choosing_takes_a_small_part_of_a_token() -> None:
    logits = np.random.default_rng(0).standard_normal(49152).astype(np.float32) * 3
    for settings, limit in (({}, 60e-6), ({"temperature": 0.8, "top_k": 40, "top_p": 0.9}, 1e-3)):
        sampler, best = Sampler(**settings), 1.0
        for _ in range(50):
            begun = time.thread_time()
            sampler(logits)
            best = min(best, time.thread_time() - begun)
        assert best < limit
