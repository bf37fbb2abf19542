"""Means and quantiles with standard errors and confidence intervals.

Tokens of one window share their context, so their scores are not independent: from 8 windows on a window is the unit of
the standard error (a cluster), below that a token is, which says less than it seems to.

    mean        m = Σ x / n,  error² = u/(u−1) · Σ over units (Σ over the unit (x − m))² / n²
    function    of means: the same over its linearisation (delta method), so that what two models share cancels out
    interval    m ± t · error, t = Student's 97.5 % quantile with u − 1 degrees of freedom
    quantile    between the order statistics n·q ± 1.96 · √(n·q·(1 − q)): for any distribution, tokens as units
"""

from __future__ import annotations

from math import ceil, exp, floor, inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from flyweight.foundation.accuracy_gate import LEAST_WINDOWS

Array = np.ndarray[Any, Any]

_Z = 1.959964


class Estimate(NamedTuple):
    """A figure and its 95 % interval; `error` is the standard error where there is one."""

    value: float
    low: float
    high: float
    error: float | None = None


def unit_of(scores: Array) -> str:
    return "window" if len(scores) >= LEAST_WINDOWS else "token"


def student(freedom: int) -> float:
    """Student's 97.5 % quantile, by its expansion around the normal one: within 0.5 % from 6 degrees of freedom on."""
    if freedom < 1:
        return inf
    z, v = _Z, freedom
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)


def _around(value: float, influence: Array) -> Estimate:
    """`influence`, (windows, tokens): by how much each token moves the value, times n; they sum to 0."""
    units = influence.sum(1) if unit_of(influence) == "window" else influence.ravel()
    count = len(units)
    error = sqrt(count / (count - 1) * float((units**2).sum())) / influence.size if count > 1 else inf
    reach = student(count - 1) * error
    return Estimate(value, value - reach, value + reach, error)


def mean(scores: Array) -> Estimate:
    """Of f64 (windows, tokens)."""
    return _around(float(scores.mean()), scores - scores.mean())


def share(scores: Array) -> Estimate:
    """Of scores that are 0 or 1: a mean, its interval kept between them."""
    found = mean(scores)
    return Estimate(found.value, max(found.low, 0.0), min(found.high, 1.0), found.error)


def _perplexity(surprises: Array) -> float:
    """Infinite where no float holds it: a model that is off by hundreds of nats a token."""
    try:
        return exp(surprises.mean())
    except OverflowError:
        return inf


def perplexity(surprises: Array) -> Estimate:
    value = _perplexity(surprises)
    if value == inf:
        return Estimate(inf, inf, inf)
    return _around(value, value * (surprises - surprises.mean()))


def perplexity_change(surprises: Array, reference: Array) -> Estimate:
    """Perplexity beyond the reference's on the same tokens; paired, so the text's own difficulty cancels out."""
    ours, theirs = _perplexity(surprises), _perplexity(reference)
    if inf in (ours, theirs):
        return Estimate(ours - theirs, -inf, inf)
    influence = ours * (surprises - surprises.mean()) - theirs * (reference - reference.mean())
    return _around(ours - theirs, influence)


def quantile(scores: Array, share: float) -> Estimate:
    ranked = np.sort(scores, axis=None)
    last, centre = len(ranked) - 1, share * len(ranked)
    reach = _Z * sqrt(centre * (1 - share))
    low, high = max(floor(centre - reach), 0), min(ceil(centre + reach), last)
    return Estimate(float(np.quantile(ranked, share)), float(ranked[low]), float(ranked[high]))
