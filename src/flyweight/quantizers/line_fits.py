"""Least squares for lines in the metric of a Gram matrix: of `gptq`, better scales and biases for the codes there are.

An array is (columns, rows); `pull` is error · gram, kept true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array
from flyweight.codecs.lines import Lines, Steps

F = np.float32
_SINGULAR = F(1e-6)


class Metric(NamedTuple):
    """A Gram matrix, from one of its columns on."""

    gram: Array
    first: int

    def product(self, values: Array, columns: slice) -> Array:
        """gram · values, of these columns."""
        out = np.zeros_like(values)
        at = self.first + columns.start
        kernels.add_products(self.gram, at, at, np.ascontiguousarray(values), out)
        return out

    def sums(self, columns: slice) -> Array:
        """Of each column over these columns."""
        own = slice(self.first + columns.start, self.first + columns.stop)
        return np.asarray(self.gram[own, own].sum(axis=0))

    def move(self, change: Array, columns: slice, error: Array, pull: Array) -> None:
        """ŵ of some columns has changed."""
        error[columns] -= change
        kernels.add_products(self.gram, self.first, self.first + columns.start, -change, pull)


def _dots(a: Array, b: Array) -> Array:
    """Of each row of the matrix; down a column in order, so that they are the same everywhere."""
    return np.asarray((a * b).sum(axis=0))


def _quotient(a: Array, b: Array, least: Array | float = 0) -> Array:
    """a / b; 0 unless b is more than the least."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > least)


def _groups(lines: Lines, columns: int) -> Iterator[tuple[int, slice]]:
    for k in range(len(lines.scale)):
        yield k, slice(k * lines.group, min((k + 1) * lines.group, columns))


class _Fit:
    """What moving the line of a group would change: the sums that loss and optimum are made of.

    loss(ds, db) = ds² · vv + 2 · ds · db · v1 + db² · ones − 2 · (ds · gv + db · g1)        v the levels of its codes
    """

    def __init__(self, lines: Lines, levels: Array, pull: Array, metric: Metric, columns: slice) -> None:
        self.values = levels
        each = metric.sums(columns)[:, None]
        sums = _dots(levels, metric.product(levels, columns)), _dots(levels, pull), _dots(levels, each), pull.sum(axis=0)
        self.vv, self.gv, self.v1, self.g1 = map(lines.over_tied, sums)
        self.ones = each.sum() * F(lines.tied)

    def best(self, has_bias: bool) -> tuple[Array, Array]:
        if not has_bias:
            return _quotient(self.gv, self.vv), np.zeros_like(self.gv)
        determinant = self.vv * self.ones - self.v1 * self.v1
        sound = _SINGULAR * self.vv * self.ones
        scale = _quotient(self.gv * self.ones - self.g1 * self.v1, determinant, sound)
        return scale, _quotient(self.g1 - scale * self.v1, np.full_like(scale, self.ones))

    def loss(self, scale: Array, bias: Array) -> Array:
        """Less what it is for no change."""
        return np.asarray(
            scale * (scale * self.vv + 2 * bias * self.v1 - 2 * self.gv) + bias * (bias * self.ones - 2 * self.g1)
        )

    def change(self, scale: Array, bias: Array) -> Array:
        return np.asarray(scale * self.values + bias)


@np.errstate(all="ignore")
def refit(lines: Lines, codes: Array, error: Array, pull: Array, metric: Metric) -> None:
    """Of each group the scale and bias of least error, as they can be stored, where they are better."""
    for k, columns in _groups(lines, len(codes)):
        fit = _Fit(lines, lines.levels[0][codes[columns]], pull[columns], metric, columns)
        scale, bias = fit.best(lines.has_bias)
        near = lines.near(lines.scale[k] + scale, lines.bias[k] + bias)
        scale, bias = near[0] - lines.scale[k], near[1] - lines.bias[k]
        better = fit.loss(scale, bias) < 0
        metric.move(np.where(better, fit.change(scale, bias), F(0)), columns, error, pull)
        lines.scale[k] = np.where(better, near[0], lines.scale[k])
        lines.bias[k] = np.where(better, near[1], lines.bias[k])


@np.errstate(all="ignore")
def refit_steps(lines: Steps, codes: Array, error: Array, pull: Array, metric: Metric) -> None:
    """The same of steps, after what a block of groups has in common."""
    levels = lines.levels[0][codes]
    if lines.has_all_groups:
        _refit_shared(lines, levels, error, pull, metric)
    for k, columns in _groups(lines, len(codes)):
        fit = _Fit(lines, levels[columns], pull[columns], metric, columns)
        step, minimum = _best_steps(lines, k, fit)
        scale = lines.d[0] * step - lines.scale[k]
        bias = np.zeros_like(scale) if minimum is None or lines.m is None else -(lines.m[0] * minimum) - lines.bias[k]
        metric.move(fit.change(scale, bias), columns, error, pull)
        lines.steps[k] = step
        if lines.minimums is not None and minimum is not None:
            lines.minimums[k] = minimum
        lines.follow()


def _refit_shared(lines: Steps, levels: Array, error: Array, pull: Array, metric: Metric) -> None:
    """The scales that a block of groups has in common, for the steps they have."""
    every = slice(0, len(levels))
    by_d = levels * np.repeat(lines.steps, lines.group, axis=0)[: len(levels)]
    dd, gd = _dots(by_d, metric.product(by_d, every)), _dots(pull, by_d)
    if lines.m is None or lines.minimums is None:
        d = lines.near_shared(lines.d[0] + _quotient(gd, dd))
        moved = d - lines.d[0]
        better = moved * (moved * dd - 2 * gd) < 0
        metric.move(np.where(better, moved * by_d, F(0)), every, error, pull)
    else:
        by_m = -np.repeat(lines.minimums, lines.group, axis=0)[: len(levels)]
        product = metric.product(by_m, every)
        mm, dm, gm = _dots(by_m, product), _dots(by_d, product), _dots(pull, by_m)
        determinant, sound = dd * mm - dm * dm, _SINGULAR * dd * mm
        d = lines.near_shared(lines.d[0] + _quotient(gd * mm - gm * dm, determinant, sound))
        m = lines.near_shared(lines.m[0] + _quotient(gm * dd - gd * dm, determinant, sound))
        moved, lowered = d - lines.d[0], m - lines.m[0]
        loss = moved * (moved * dd + 2 * lowered * dm - 2 * gd) + lowered * (lowered * mm - 2 * gm)
        better = (loss < 0) & (d > 0) & (m >= 0)
        metric.move(np.where(better, moved * by_d + lowered * by_m, F(0)), every, error, pull)
        lines.m[0] = np.where(better, m, lines.m[0])
    lines.d[0] = np.where(better, d, lines.d[0])
    lines.follow()


def _best_steps(lines: Steps, k: int, fit: _Fit) -> tuple[Array, Array | None]:
    """Of the three steps around the best, the best, with its best minimum; those there are where none is better."""
    step, minimum = lines.steps[k], None if lines.minimums is None else lines.minimums[k]
    least = np.zeros_like(step)
    ideal, _ = fit.best(lines.has_bias)
    middle = np.rint((lines.scale[k] + ideal) * _inverse(lines.d[0]))
    for move in (0, -1, 1):
        tried = np.clip(middle + F(move), F(lines.least), F(lines.greatest))
        scale, bias = lines.d[0] * tried - lines.scale[k], np.zeros_like(step)
        lowest = minimum
        if lines.m is not None:
            wanted = lines.bias[k] + _quotient(fit.g1 - scale * fit.v1, np.full_like(scale, fit.ones))
            lowest = np.clip(np.rint(-wanted * _inverse(lines.m[0])), F(0), F(lines.greatest))
            bias = -(lines.m[0] * lowest) - lines.bias[k]
        loss = fit.loss(scale, bias)
        better = loss < least
        least, step = np.where(better, loss, least), np.where(better, tried, step)
        if minimum is not None and lowest is not None:
            minimum = np.where(better, lowest, minimum)
    return step, minimum


def _inverse(a: Array) -> Array:
    return np.divide(F(1), a, out=np.zeros_like(a), where=a != 0)
