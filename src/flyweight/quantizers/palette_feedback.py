"""Palettes by error feedback: tables of least error of what a matrix computes, for the codes they have.

A table begins as that of `kmeans`, columns weighed by the diagonal of the factor. Codes follow with feedback; then, by turns,
the table by least squares for its codes, and the codes by descent beside each other. What a table t is to minimise is

    Σ over its rows of e·G·eᵀ        e[k] = w[k] − t[code[k]]

a quadratic form in as many unknowns as the table has entries. Conjugate gradients find its least value with a product by G for
each step, and the form itself is never written down. Tables are found on some of the rows where there are many, then stored,
and all rows are coded with them as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from flyweight.codecs import Array, Parts
from flyweight.codecs.lines import Lines
from flyweight.codecs.palette import Palette
from flyweight.foundation.dtypes import DType
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers.error_feedback import CodedRows, Factors, Part, parts_of, pieces
from flyweight.quantizers.kmeans import kmeans
from flyweight.quantizers.line_fits import Metric

F = np.float32
_ROUNDS = 3
_STEPS = 8
_SETTLED = 1e-4
"""Conjugate gradients end where what is left is so much of what there was."""
_WEIGHTS_AT_ONCE = 1 << 20
"""And as many are enough to find a table."""


def fill_palette(codec: Palette, spec: TensorSpec, rows: Array, factors: Factors) -> Parts:
    importance = InputStatistics(factors.feedback.diagonal().copy())
    tables = codec.table_values(kmeans(rows, codec, spec, importance))[:, :, 0]
    span = -(-spec.rows // prod(codec.frame(spec).tables))
    runs = list(_runs(spec, span))
    for own in runs:
        tables[own] = _settled(_some_rows(rows, own, span), tables[own], factors)
    stored = codec.stored_tables(spec, tables[:, :, None].astype(np.float64))
    tables, codes = codec.table_values(stored)[:, :, 0], np.empty(rows.shape, np.uint8)
    for own in runs:
        for part in _row_pieces(spec, own, span):
            some = _Rows(rows[part], factors)
            some.code_with(tables[own])
            for _ in range(_ROUNDS):
                some.descend_with(tables[own])
            codes[part] = some.codes.T
    return codec.with_codes(stored, codes)


def _runs(spec: TensorSpec, span: int) -> Iterator[slice]:
    """Tables that are worked on together: of as many rows each, so the last, which may have fewer, is by itself."""
    whole, at_once = spec.rows // span, max(_WEIGHTS_AT_ONCE // (span * spec.columns), 1)
    for first in range(0, whole, at_once):
        yield slice(first, min(first + at_once, whole))
    if spec.rows % span:
        yield slice(whole, whole + 1)


def _row_pieces(spec: TensorSpec, tables: slice, span: int) -> Iterator[slice]:
    """The rows of some tables, or pieces of those of one."""
    rows = slice(tables.start * span, min(tables.stop * span, spec.rows))
    if tables.stop - tables.start > 1:
        yield rows
    else:
        yield from pieces(rows, max(_WEIGHTS_AT_ONCE // spec.columns, 1))


def _some_rows(rows: Array, tables: slice, span: int) -> Array:
    """The rows of some tables; of one with more rows than are enough, rows from everywhere."""
    own = rows[tables.start * span : tables.stop * span]
    count = max(_WEIGHTS_AT_ONCE // rows.shape[1], 1)
    if len(own) <= count or tables.stop - tables.start > 1:
        return own
    return np.asarray(own[np.arange(count) * len(own) // count])


def _settled(rows: Array, tables: Array, factors: Factors) -> Array:
    """The best tables for some rows, each ascending."""
    coded = _Rows(rows, factors)
    coded.code_with(tables)
    for _ in range(_ROUNDS):
        tables = coded.refitted(tables)
        coded.descend_with(tables)
    return tables


class _Rows(CodedRows):
    """Rows of some tables, as many of each."""

    def __init__(self, rows: Array, factors: Factors) -> None:
        super().__init__(np.ascontiguousarray(rows.T), factors)
        self.every = slice(0, rows.shape[1])

    def _parts(self, tables: Array) -> list[Part]:
        """From the last to the first, with the entries as levels of one line."""
        columns, rows = self.values.shape
        one = np.ones((1, rows), F)
        lines = Lines(np.ascontiguousarray(tables, F), columns, one, np.zeros_like(one), DType.F32, has_bias=False)
        return parts_of(self.every, lines)[::-1]

    def code_with(self, tables: Array) -> None:
        for part in self._parts(tables):
            self.code(part)

    def descend_with(self, tables: Array) -> None:
        for part in self._parts(tables):
            self.descend(part, self.pull(part.columns))

    @np.errstate(invalid="ignore", divide="ignore")
    def refitted(self, tables: Array) -> Array:
        """The tables of least error for these codes, each ascending, and codes and errors that go with them."""
        metric, (count, entries) = Metric(self.gram, 0), tables.shape
        table_of = np.repeat(np.arange(count), self.values.shape[1] // count)
        entry_of = (table_of * entries + self.codes).reshape(-1)

        def sums(values: Array) -> Array:
            """Over the weights of each entry."""
            return np.asarray(np.bincount(entry_of, values.reshape(-1), count * entries).reshape(count, entries))

        def dots(a: Array, b: Array) -> Array:
            return np.asarray((a * b).sum(axis=1, keepdims=True))

        curvature = sums(np.broadcast_to(self.gram.diagonal()[:, None], self.values.shape))
        inverse = np.divide(1, curvature, out=np.zeros_like(curvature), where=curvature > 0)
        change = np.zeros((count, entries))
        rest = sums(self.pull(self.every))
        ahead = inverse * rest
        size = first = dots(rest, ahead)
        for _ in range(_STEPS):
            bent = sums(metric.product(ahead.astype(F).reshape(-1)[entry_of].reshape(self.values.shape), self.every))
            along = dots(ahead, bent)
            step = np.where((along > 0) & (size > _SETTLED**2 * first), size / along, 0)
            if not step.any():
                break
            change += step * ahead
            rest = rest - step * bent
            conditioned = inverse * rest
            size, before = dots(rest, conditioned), size
            ahead = conditioned + np.where(before > 0, size / before, 0) * ahead
        moved = (tables + change).astype(F)
        order = np.argsort(moved, axis=1, kind="stable")
        self.codes[...] = np.argsort(order, axis=1, kind="stable").astype(np.uint8)[table_of, self.codes]
        moved = np.take_along_axis(moved, order, axis=1)
        self.error[...] = self.values - moved[table_of, self.codes]
        return np.asarray(moved)
