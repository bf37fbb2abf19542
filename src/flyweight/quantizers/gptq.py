"""`gptq`: codes and scales of least error of what a matrix computes, Σ (E·x)² over the inputs x seen, E = W − Ŵ.

With G the Gram matrix of the inputs that is tr(E·G·Eᵀ). Rows of E do not concern each other; columns do, and a column that is
coded later can make up for errors before it. G = Uᵀ·D·U with ones on the diagonal of U turns the error into

    Σ over columns k of D[k] · (E[k] + Σ over j > k of E[j] · U[k, j])²

so columns are coded from the last to the first, each as the code nearest to  W[k] + Σ E[j] · U[k, j]  (Frantar et al. 2022;
Chee et al. 2023). For that G gets a little more on its diagonal, a hundredth of its mean.

Scales are found when their group's turn comes, on the values as they are to be coded then and weighed by D, by the quantizer
that searches for such scales (`Codec.searched_by`). Then come `_PASSES` over all groups again, each with all others as they are
now: scales and biases by least squares for the codes they have (`_refit`; only what is better as it will be stored is taken),
and codes column by column, each the best beside all others (`kernels.descend_codes`). No step makes the error larger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple
from weakref import finalize

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.casts import astype
from flyweight.codecs.lines import Lines, Steps
from flyweight.codecs.value_checks import require_finite
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from flyweight.quantizers.quantizer import Quantizer

F = np.float32
_PASSES = 3
_DAMPING = (0.01, 0.1, 1.0, 10.0)
"""The first will do, unless rounding has left the matrix indefinite."""
_BLOCK = 256
"""Columns that are worked on together."""
_STRETCH = 64
"""Columns that are coded before the others of their block hear of their errors."""
_WEIGHTS_AT_ONCE = 1 << 20
_SINGULAR = F(1e-6)


def _fill(array: Array, codec: Codec, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    codec.layout(spec)  # refuses what cannot be stored
    rows = astype(np.asarray(array), DType.F32.numpy).reshape(spec.rows, spec.columns)
    require_finite(np.isfinite(rows).all())
    gram = None if inputs is None else inputs.gram
    if inputs is None or gram is None:
        raise UnsupportedError(
            "gptq needs the Gram matrix of what the matrix is multiplied with, and there is none", code="E_STATISTICS",
            hint="`flyweight calibrate MODEL --gram -o STATS`, then `--stats STATS`",
        )  # fmt: skip
    if gram.shape != (spec.columns, spec.columns):
        raise UnsupportedError(
            f"the Gram matrix is of {len(gram)} columns, and the matrix has {spec.columns}", code="E_STATISTICS"
        )
    if not rows.size:
        return codec.encode(spec, rows)
    step = max(_WEIGHTS_AT_ONCE // spec.columns, 1)
    codes, found = np.empty(rows.shape, np.uint8), []
    with _kept.of(inputs, gram) as factors:
        for start in range(0, len(rows), step):
            some = _Rows(codec, np.ascontiguousarray(rows[start : start + step].T), *factors)
            codes[start : start + step] = some.codes.T
            found.append(some.lines)
    return codec.from_lines(spec, Lines.beside(found), codes)


def _memory(columns: int) -> int:
    """A Gram matrix as it is read and as it is used, its factor, and what is worked on of some rows."""
    return 4 * 3 * columns * columns + 4 * 8 * max(_WEIGHTS_AT_ONCE, columns)


gptq = Quantizer("gptq", lambda codec: codec.alone > 0, _fill, _memory)


class _Factors(NamedTuple):
    gram: Array
    feedback: Array
    """U, with D on its diagonal."""


def _factors_of(gram: Array) -> _Factors:
    diagonal = gram.diagonal()
    mean = float(diagonal.mean(dtype=np.float64))
    if np.isfinite(gram).all() and np.isfinite(F(mean)):
        for damping in _DAMPING:
            made = np.array(gram, F, order="C")
            made[np.diag_indices(len(made))] = diagonal + F(mean * damping if mean > 0 else 1)
            kernels.factorize(made)
            if (made.diagonal() > 0).all():
                return _Factors(gram, made)
    raise UnsupportedError("not the Gram matrix of any inputs: it is not positive", code="E_STATISTICS")


class _Kept:
    """Factors for the next rows of a matrix, and for the next matrix with the same inputs: as many as there were ever users at
    once, the last used ones, and none for longer than the inputs are there. Who wants what is being made waits for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = self._most = 0
        self._made: OrderedDict[int, Future[_Factors]] = OrderedDict()
        """By the identity of the inputs."""

    @contextmanager
    def of(self, inputs: InputStatistics, gram: Array) -> Iterator[_Factors]:
        key, mine = id(inputs), None
        with self._lock:
            self._users += 1
            self._most = max(self._most, self._users)
            found = self._made.get(key)
            if found is None:
                mine = self._made[key] = found = Future()
                finalize(inputs, self._made.pop, key, None)
            self._made.move_to_end(key)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        try:
            if mine is not None:
                try:
                    mine.set_result(_factors_of(gram))
                except BaseException as error:
                    with self._lock:
                        self._made.pop(key, None)  # another try may have the memory
                    mine.set_exception(error)
                    raise
            yield found.result()
        finally:
            with self._lock:
                self._users -= 1


_kept = _Kept()


class _Rows:
    """Some rows of a matrix, turned: (columns, rows)."""

    def __init__(self, codec: Codec, values: Array, gram: Array, feedback: Array) -> None:
        self.codec, self.values, self.gram, self.feedback = codec, values, gram, feedback
        self.error, self.codes = np.zeros_like(values), np.zeros(values.shape, np.uint8)
        units = list(_pieces(slice(0, len(values)), codec.alone))
        blocks: list[tuple[slice, Lines]] = []
        whole: list[Lines] = []
        for unit in reversed(units):
            lines = self._coded(unit)
            whole.append(lines)
            blocks += [(block, _lines_of(lines, unit, block)) for block in reversed(_blocks(unit, lines.group))]
        for _ in range(_PASSES):
            for block, lines in blocks:
                self._settle(block, lines)
        self.lines = Lines.joined(whole[::-1])

    def _coded(self, unit: slice) -> Lines:
        """Lines for columns that have them in common, and their first codes."""
        adjusted = self._adjusted(unit) if unit.stop - unit.start <= _BLOCK else self.values[unit]
        rows = np.ascontiguousarray(adjusted.T)
        weights = InputStatistics(self.feedback.diagonal()[unit])
        spec = TensorSpec(rows.shape, DType.F32)
        lines = self.codec.lines(spec, QUANTIZERS[self.codec.searched_by](rows, self.codec, spec, weights))
        for block in reversed(_blocks(unit, lines.group)):
            self._first_codes(block, _lines_of(lines, unit, block))
        return lines

    def _adjusted(self, columns: slice) -> Array:
        """Values of columns with what the errors of all later ones ask of them."""
        adjusted = self.values[columns].copy()
        kernels.add_products(self.feedback, columns.start, columns.stop, self.error[columns.stop :], adjusted)
        return adjusted

    def _first_codes(self, block: slice, lines: Lines) -> None:
        adjusted = self._adjusted(block)
        for stretch in reversed(list(_pieces(block, max(_STRETCH // lines.group, 1) * lines.group))):
            own = adjusted[stretch.start - block.start : stretch.stop - block.start]
            part = _lines_of(lines, block, stretch)
            kernels.feedback_codes(
                self.values[stretch], own, self.feedback, stretch.start, part.scale, part.bias, part.group, part.levels,
                self.codes[stretch], self.error[stretch],
            )  # fmt: skip
            before = adjusted[: stretch.start - block.start]
            kernels.add_products(self.feedback, block.start, stretch.start, self.error[stretch], before)

    def _settle(self, block: slice, lines: Lines) -> None:
        """Better lines and better codes for some columns beside all others."""
        pull = np.zeros_like(self.values[block])
        kernels.add_products(self.gram, block.start, 0, self.error, pull)
        own = np.ascontiguousarray(self.gram[block, block])
        codes, error = self.codes[block], self.error[block]
        if isinstance(lines, Steps):
            _refit_steps(lines, codes, error, pull, own)
        else:
            _refit(lines, codes, error, pull, own)
        kernels.descend_codes(pull, self.gram, block.start, lines.scale, lines.bias, lines.group, lines.levels, codes, error)


def _pieces(columns: slice, length: int) -> Iterator[slice]:
    for start in range(columns.start, columns.stop, length):
        yield slice(start, min(start + length, columns.stop))


def _blocks(unit: slice, group: int) -> list[slice]:
    """Whole groups of a unit, as many as are worked on together."""
    return list(_pieces(unit, max(_BLOCK // group, 1) * group))


def _lines_of(lines: Lines, columns: slice, some: slice) -> Lines:
    """Of the groups of some of the columns."""
    first = (some.start - columns.start) // lines.group
    return lines.some(slice(first, first - (some.start - some.stop) // lines.group))


# Least squares in the metric of a Gram matrix. An array is (columns, rows); `pull` is error · gram, kept true.


def _product(gram: Array, values: Array) -> Array:
    out = np.zeros((len(gram), values.shape[1]), F)
    kernels.add_products(np.ascontiguousarray(gram), 0, 0, np.ascontiguousarray(values), out)
    return out


def _dots(a: Array, b: Array) -> Array:
    """Of each row of the matrix; down a column in order, so that they are the same everywhere."""
    return np.asarray((a * b).sum(axis=0))


def _quotient(a: Array, b: Array, least: Array | float = 0) -> Array:
    """a / b; 0 unless b is more than the least."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > least)


def _move(change: Array, columns: slice, error: Array, pull: Array, gram: Array) -> None:
    """ŵ of some columns has changed."""
    error[columns] -= change
    kernels.add_products(np.ascontiguousarray(gram[:, columns]), 0, 0, -change, pull)


def _groups(lines: Lines, columns: int) -> Iterator[tuple[int, slice]]:
    for k in range(len(lines.scale)):
        yield k, slice(k * lines.group, min((k + 1) * lines.group, columns))


class _Fit:
    """What moving the line of a group would change: the sums that loss and optimum are made of.

    loss(ds, db) = ds² · vv + 2 · ds · db · v1 + db² · ones − 2 · (ds · gv + db · g1)        v the levels of its codes
    """

    def __init__(self, levels: Array, pull: Array, gram: Array) -> None:
        self.values = levels
        self.vv, self.gv = _dots(levels, _product(gram, levels)), _dots(levels, pull)
        each = gram.sum(axis=0)[:, None]
        self.v1, self.g1, self.ones = _dots(levels, each), pull.sum(axis=0), each.sum()

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
def _refit(lines: Lines, codes: Array, error: Array, pull: Array, gram: Array) -> None:
    for k, columns in _groups(lines, len(codes)):
        fit = _Fit(lines.levels[0][codes[columns]], pull[columns], gram[columns, columns])
        scale, bias = fit.best(lines.has_bias)
        near = lines.near(lines.scale[k] + scale, lines.bias[k] + bias)
        scale, bias = near[0] - lines.scale[k], near[1] - lines.bias[k]
        better = fit.loss(scale, bias) < 0
        _move(np.where(better, fit.change(scale, bias), F(0)), columns, error, pull, gram)
        lines.scale[k] = np.where(better, near[0], lines.scale[k])
        lines.bias[k] = np.where(better, near[1], lines.bias[k])


@np.errstate(all="ignore")
def _refit_steps(lines: Steps, codes: Array, error: Array, pull: Array, gram: Array) -> None:
    levels = lines.levels[0][codes]
    if lines.has_all_groups:
        _refit_shared(lines, levels, error, pull, gram)
    for k, columns in _groups(lines, len(codes)):
        fit = _Fit(levels[columns], pull[columns], gram[columns, columns])
        step, minimum = _best_steps(lines, k, fit)
        scale = lines.d[0] * step - lines.scale[k]
        bias = np.zeros_like(scale) if minimum is None or lines.m is None else -(lines.m[0] * minimum) - lines.bias[k]
        _move(fit.change(scale, bias), columns, error, pull, gram)
        lines.steps[k] = step
        if lines.minimums is not None and minimum is not None:
            lines.minimums[k] = minimum
        lines.follow()


def _refit_shared(lines: Steps, levels: Array, error: Array, pull: Array, gram: Array) -> None:
    """The scales that a block of groups has in common, for the steps they have."""
    by_d = levels * np.repeat(lines.steps, lines.group, axis=0)[: len(levels)]
    dd, gd = _dots(by_d, _product(gram, by_d)), _dots(pull, by_d)
    if lines.m is None or lines.minimums is None:
        d = lines.near_shared(lines.d[0] + _quotient(gd, dd))
        moved = d - lines.d[0]
        better = moved * (moved * dd - 2 * gd) < 0
        _move(np.where(better, moved * by_d, F(0)), slice(None), error, pull, gram)
    else:
        by_m = -np.repeat(lines.minimums, lines.group, axis=0)[: len(levels)]
        product = _product(gram, by_m)
        mm, dm, gm = _dots(by_m, product), _dots(by_d, product), _dots(pull, by_m)
        determinant, sound = dd * mm - dm * dm, _SINGULAR * dd * mm
        d = lines.near_shared(lines.d[0] + _quotient(gd * mm - gm * dm, determinant, sound))
        m = lines.near_shared(lines.m[0] + _quotient(gm * dd - gd * dm, determinant, sound))
        moved, lowered = d - lines.d[0], m - lines.m[0]
        loss = moved * (moved * dd + 2 * lowered * dm - 2 * gd) + lowered * (lowered * mm - 2 * gm)
        better = (loss < 0) & (d > 0) & (m >= 0)
        _move(np.where(better, moved * by_d + lowered * by_m, F(0)), slice(None), error, pull, gram)
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
