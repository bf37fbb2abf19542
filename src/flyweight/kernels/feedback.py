"""The inner loops of quantizing with error feedback (`quantizers.feedback` says what for).

Rows of a matrix do not concern each other. Arrays are turned, a row for each column of the matrix, so that they lie side by
side: values, adjusted values, errors and codes are (columns, rows), scales and biases (groups of columns, rows). A value is

    ŵ = scale · level[code] + bias

with levels in ascending order, a table for all rows or one for each of equal runs of them. The level nearest to x is that
nearest to (x − bias) / scale: of whole numbers one after the other by rounding halves to even, of others the lower of two
equally near.

Columns are coded from the last to the first. Products are rounded before they are added, sums run in the order of their index:
the bits are the same on every machine.
"""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import F32, U8, Array, check
from flyweight.kernels.registry import kernel

F = np.float32

_ROUND = F(1.5 * 2**23)  # x + this − this is x rounded to nearest even, for |x| < 2^22
TOGETHER = 64
"""Rows of a matrix that are eliminated before the others are."""
CHUNK = 256
"""Terms of a product that are summed before the sum is added."""


def _inverse(a: Array) -> Array:
    """1 / a; 0 for 0."""
    return np.asarray(np.where(a != 0, F(1) / np.where(a != 0, a, F(1)), F(0)))


def _are_uniform(levels: Array) -> bool:
    """Whole numbers one after the other, near zero."""
    first = levels[0]
    return bool(abs(first) <= 256 and first == np.trunc(first)) and np.array_equal(levels, first + np.arange(len(levels)))


def _nearest(x: Array, levels: Array) -> Array:
    """Codes, as floats."""
    if _are_uniform(levels):
        held = np.where(x > levels[0], np.where(x < levels[-1], x, levels[-1]), levels[0])
        return np.asarray((held + _ROUND) - _ROUND - levels[0])
    return np.asarray((x[None] > ((levels[:-1] + levels[1:]) * F(0.5))[:, None]).sum(axis=0), F)


def _nearest_of(x: Array, levels: Array) -> Array:
    """The same by a table for each of equal runs."""
    return np.concatenate([_nearest(own, table) for own, table in zip(np.split(x, len(levels)), levels, strict=True)])


def _levels_of(codes: Array, levels: Array) -> Array:
    own = np.repeat(np.arange(len(levels)), len(codes) // len(levels))
    return np.asarray(levels[own, codes.astype(np.intp)])


def _value(codes: Array, levels: Array, scale: Array, bias: Array) -> Array:
    return np.asarray(scale * _levels_of(codes, levels) + bias)


@kernel
def _feedback_codes(
    values: Array, adjusted: Array, feedback: Array, first: int, scale: Array, bias: Array, group: int, levels: Array,
    codes: Array, error: Array,
) -> None:  # fmt: skip
    for j in reversed(range(len(values))):
        s, b = scale[j // group], bias[j // group]
        code = _nearest_of((adjusted[j] - b) * _inverse(s), levels)
        codes[j] = code.astype(np.uint8)
        error[j] = values[j] - _value(code, levels, s, b)
        adjusted[:j] += error[j] * feedback[first : first + j, first + j, None]


@kernel
def _descend_codes(
    pull: Array, gram: Array, first: int, scale: Array, bias: Array, group: int, levels: Array, codes: Array, error: Array
) -> None:
    columns = slice(first, first + len(pull))
    for j in reversed(range(len(pull))):
        s, b = scale[j // group], bias[j // group]
        was = _value(codes[j], levels, s, b)
        code = _nearest_of((was + pull[j] * _inverse(gram[first + j, first + j]) - b) * _inverse(s), levels)
        codes[j] = code.astype(np.uint8)
        change = _value(code, levels, s, b) - was
        error[j] -= change
        pull -= change * gram[columns, first + j, None]


def _product(a: Array, b: Array) -> Array:
    """a · b, term by term."""
    total = np.zeros((len(a), b.shape[1]), F)
    for column, row in zip(a.T, b, strict=True):
        total += column[:, None] * row
    return total


@kernel
def _add_products(a: Array, row: int, column: int, b: Array, out: Array) -> None:
    for at in range(0, len(b), CHUNK):
        terms = b[at : at + CHUNK]
        out += _product(a[row : row + len(out), column + at : column + at + len(terms)], terms)


@kernel
def _factorize(gram: Array) -> None:
    n = len(gram)
    for start in range(0, n, TOGETHER):
        stop = min(start + TOGETHER, n)
        for k in range(start, stop):
            inverse = _inverse(gram[k, k])
            for i in range(k + 1, stop):
                gram[i, i:] -= gram[k, i] * inverse * gram[k, i:]
            gram[k, k + 1 :] *= inverse
        rows = gram[start:stop]
        by = rows[:, stop:] * gram.diagonal()[start:stop, None]
        for i in range(stop, n):
            gram[i, i:] -= _product(by[:, i - stop, None].T, rows[:, i:])[0]


# Checked --------------------------------------------------------------------------------------


def _check_columns(
    values: Array, square: Array, first: int, scale: Array, bias: Array, group: int, levels: Array, codes: Array, error: Array
) -> None:
    check("values", values, F32, (None, None), written=True)
    columns, rows = values.shape
    check("matrix", square, F32, (None, len(square)))
    if group < 1 or not 0 <= first <= len(square) - columns:
        raise ValueError(f"columns {first} to {first + columns} in groups of {group} are not those of a {len(square)}² matrix")
    for label, part in (("scale", scale), ("bias", bias)):
        check(label, part, F32, (-(-columns // group), rows))
    check("levels", levels, F32, (None, None))
    tables, count = levels.shape
    if not 1 <= count <= 256 or not tables or rows % tables:
        raise ValueError(f"levels must be 1 to 256 of each of equal runs of {rows} rows, not {tables} × {count}")
    check("codes", codes, U8, (columns, rows), written=True)
    check("error", error, F32, (columns, rows), written=True)


def feedback_codes(
    values: Array, adjusted: Array, feedback: Array, first: int, scale: Array, bias: Array, group: int, levels: Array,
    codes: Array, error: Array,
) -> None:  # fmt: skip
    """Code columns from the last to the first, each with what the errors of those before it ask of it.

    adjusted: f32 (columns, rows), the values with what is asked by columns that are coded already. A column k gets error[j] ·
    feedback[first + k, first + j] of every later one j. feedback: f32 (n, n); levels: f32 (tables, levels); error = values − ŵ.
    """
    _check_columns(adjusted, feedback, first, scale, bias, group, levels, codes, error)
    check("values", values, F32, adjusted.shape)
    _feedback_codes.run(values, adjusted, feedback, first, scale, bias, group, levels, codes, error)


def descend_codes(
    pull: Array, gram: Array, first: int, scale: Array, bias: Array, group: int, levels: Array, codes: Array, error: Array
) -> None:
    """Move each column to its best codes beside all others, from the last to the first.

    pull: f32 (columns, rows), error · gram for these columns, kept true while error and codes change. gram: f32 (n, n).
    """
    _check_columns(pull, gram, first, scale, bias, group, levels, codes, error)
    if codes.max(initial=0) >= levels.shape[1]:
        raise ValueError(f"a code is beyond the {levels.shape[1]} levels")
    _descend_codes.run(pull, gram, first, scale, bias, group, levels, codes, error)


def add_products(a: Array, row: int, column: int, b: Array, out: Array) -> None:
    """out += a[row:, column:] · b, as many rows as out has, as many columns as b has rows."""
    check("a", a, F32, (None, None))
    check("b", b, F32, (None, None))
    check("out", out, F32, (None, b.shape[1]), written=True)
    if not (0 <= row <= len(a) - len(out) and 0 <= column <= a.shape[1] - len(b)):
        raise ValueError(f"a has no {len(out)} rows from {row} and {len(b)} columns from {column} on")
    _add_products.run(a, row, column, b, out)


def factorize(gram: Array) -> None:
    """gram = Uᵀ · D · U in place, ones on the diagonal of U: D on the diagonal, U above it; below is nothing of use.

    D is positive if gram is positive definite, which is for the caller to see.
    """
    check("gram", gram, F32, (None, len(gram)), written=True)
    _factorize.run(gram)
