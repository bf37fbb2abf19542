"""Scores against their formulas in float64, errors against what they promise, windows and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flyweight.evaluate import Predictor, evaluate, scores, statistics, windows_of
from flyweight.evaluate.predict import BLOCK
from flyweight.foundation.errors import FlyweightError

Array = np.ndarray[Any, Any]
VOCABULARY = 211


def logits_of(seed: int, tokens: int, size: float = 3.0) -> Array:
    return (np.random.default_rng(seed).standard_normal((tokens, VOCABULARY)) * size).astype(np.float32)


def exact_log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    return wide - wide.max(1, keepdims=True) - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True))


def fixed(logits: Array) -> Predictor:
    """A model that says the same of every window."""

    def predict(window: Array) -> Iterator[Array]:
        assert len(window) - 1 <= len(logits)
        for start in range(0, len(window) - 1, BLOCK):
            yield logits[start : min(start + BLOCK, len(window) - 1)]

    return predict


def test_scores_equal_their_formulas_in_float64() -> None:
    z, other = logits_of(1, 40), logits_of(1, 40) + logits_of(2, 40, 0.1)
    log_q, log_p = exact_log_softmax(z), exact_log_softmax(other)
    following = np.random.default_rng(3).integers(0, VOCABULARY, 40)
    ours_q, ours_p = scores.log_softmax(z), scores.log_softmax(other)
    assert np.abs(ours_q - log_q).max() < 4e-6
    assert np.abs(scores.surprise(ours_p, following) + log_p[np.arange(40), following]).max() < 4e-6
    wanted = (np.exp(log_q) * (log_q - log_p)).sum(1)
    assert np.abs(scores.divergence(ours_q, ours_p) - wanted).max() < 1e-6
    assert np.array_equal(scores.same_top(ours_q, ours_p), log_q.argmax(1) == log_p.argmax(1))


def test_divergence_of_a_known_perturbation() -> None:
    """Half of the probability of one token of four moves to another: KL = 1/4·ln 2 − 1/4·ln 1.5."""
    even, moved = np.zeros((1, 4), np.float32), np.log(np.array([[0.125, 0.375, 0.25, 0.25]])).astype(np.float32)
    found = scores.divergence(scores.log_softmax(even), scores.log_softmax(moved))[0]
    assert found == pytest.approx((np.log(2) - np.log(1.5)) / 4, abs=1e-7)


def test_large_logits_neither_overflow_nor_lose_the_small_ones() -> None:
    found = scores.log_softmax(np.array([[3e38, -3e38, 0.0], [88.0, 0.0, 0.0]], np.float32)[1:])
    assert found[0, 1] == pytest.approx(-88.0, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_refused(bad: float) -> None:
    logits = logits_of(1, 4)
    logits[2, 5] = bad
    with pytest.raises(FlyweightError) as refused, np.errstate(invalid="ignore"):
        scores.log_softmax(logits)
    assert refused.value.code == "E_NOT_FINITE"


@pytest.mark.parametrize("length", [2, BLOCK, BLOCK + 1, BLOCK + 2, 300])
def test_blocks_do_not_show(length: int) -> None:
    windows = windows_of(np.random.default_rng(5).integers(0, VOCABULARY, 2 * length + 1), length)
    z, other = logits_of(6, length), logits_of(7, length)
    found = evaluate(windows, fixed(other), fixed(z))
    assert found.surprise.shape == (2, length - 1)
    log_q, log_p = exact_log_softmax(z)[: length - 1], exact_log_softmax(other)[: length - 1]
    for window, surprise in zip(windows, found.surprise, strict=True):
        assert np.allclose(surprise, -log_p[np.arange(length - 1), window[1:]], atol=1e-5)
    assert found.divergence is not None
    assert np.allclose(found.divergence, (np.exp(log_q) * (log_q - log_p)).sum(1), atol=1e-5)


def test_a_model_beside_itself_differs_in_nothing() -> None:
    windows = windows_of(np.arange(200) % VOCABULARY, 50)
    done: list[tuple[int, int]] = []
    found = evaluate(windows, fixed(logits_of(8, 50)), fixed(logits_of(8, 50)), lambda *at: done.append(at))
    figures = found.figures()
    assert figures["kl_mean"].value == figures["kl_99_9"].high == figures["perplexity_change"].value == 0
    assert figures["perplexity_change"].error == 0
    assert figures["same_top"].value == 1
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert found.as_json()["predicted_tokens"] == 4 * 49


def test_vocabularies_of_different_sizes_are_refused() -> None:
    windows = windows_of(np.zeros(10, int), 10)
    with pytest.raises(FlyweightError) as refused:
        evaluate(windows, fixed(logits_of(1, 10)), fixed(logits_of(1, 10)[:, :-1]))
    assert refused.value.code == "E_VOCABULARY"


def test_windows_are_whole_and_within_the_limit() -> None:
    assert windows_of(range(25), 10).tolist() == [list(range(10)), list(range(10, 20))]
    assert windows_of(range(25), 10, 19).tolist() == [list(range(10))]
    with pytest.raises(FlyweightError) as refused:
        windows_of(range(25), 10, 9)
    assert refused.value.code == "E_TEXT"
    with pytest.raises(ValueError, match="at least two tokens"):
        windows_of(range(25), 1)


def test_few_windows_count_tokens_and_many_count_windows() -> None:
    values = np.random.default_rng(1).standard_normal((7, 100))
    few = statistics.mean(values)
    assert few.error == pytest.approx(values.std(ddof=1) / np.sqrt(700))
    more = np.random.default_rng(1).standard_normal((8, 100))
    many = statistics.mean(more)
    assert many.error == pytest.approx(more.mean(1).std(ddof=1) / np.sqrt(8))
    assert (statistics.unit_of(values), statistics.unit_of(more)) == ("token", "window")


def test_intervals_hold_the_truth_as_often_as_they_say_though_tokens_of_a_window_hang_together() -> None:
    """600 texts of 12 windows whose tokens share half of their variance; 95 % ± 3 standard deviations of that count."""
    random = np.random.default_rng(2)
    held = 0
    for _ in range(600):
        scores_ = random.standard_normal((12, 1)) + random.standard_normal((12, 64))
        found = statistics.mean(scores_)
        held += found.low <= 0 <= found.high
    assert abs(held / 600 - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 600)


def test_a_paired_change_is_sharper_than_two_perplexities() -> None:
    random = np.random.default_rng(3)
    theirs = random.gamma(2.0, 1.5, (20, 200))
    ours = theirs + 0.01 + random.standard_normal(theirs.shape) * 0.02
    change = statistics.perplexity_change(ours, theirs)
    alone, other = statistics.perplexity(ours), statistics.perplexity(theirs)
    assert change.value == pytest.approx(alone.value - other.value)
    assert change.low < other.value * np.expm1(0.01) < change.high
    assert change.error is not None
    assert alone.error is not None
    assert change.error < alone.error / 20


def test_a_perplexity_that_no_float_holds_is_infinite() -> None:
    hopeless, plain = np.full((2, 5), 1000.0), np.ones((2, 5))
    assert statistics.perplexity(hopeless).value == np.inf
    for ours, theirs in ((hopeless, plain), (plain, hopeless), (hopeless, hopeless)):
        change = statistics.perplexity_change(ours, theirs)
        assert (change.low, change.high) == (-np.inf, np.inf)


def test_perplexity_error_is_the_delta_method() -> None:
    surprises = np.random.default_rng(4).gamma(2.0, 1.5, (10, 50))
    found, plain = statistics.perplexity(surprises), statistics.mean(surprises)
    assert found.value == pytest.approx(np.exp(plain.value))
    assert plain.error is not None
    assert found.error == pytest.approx(found.value * plain.error)


def test_a_share_stays_between_none_and_all() -> None:
    agreed = np.ones((3, 10))
    agreed[1, 4] = 0
    found = statistics.share(agreed)
    assert found.value == pytest.approx(29 / 30)
    assert found.low < found.value < found.high == 1


def test_quantiles_lie_between_their_order_statistics() -> None:
    values = np.random.default_rng(5).permutation(1000).reshape(10, 100).astype(np.float64)
    middle = statistics.quantile(values, 0.5)
    assert (middle.value, middle.low, middle.high, middle.error) == (499.5, 469, 531, None)
    top = statistics.quantile(values, 0.999)
    assert top.low <= top.value <= top.high == 999


@pytest.mark.parametrize(("freedom", "wanted"), [(7, 2.3646), (11, 2.2010), (19, 2.0930), (100, 1.9840), (10**6, 1.9600)])
def test_student_s_quantile(freedom: int, wanted: float) -> None:
    assert statistics.student(freedom) == pytest.approx(wanted, rel=5e-3)
