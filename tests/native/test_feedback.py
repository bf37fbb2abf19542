"""The kernels of error feedback equal their definition bit for bit, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels
from flyweight.kernels.blocks.layout import E2M1_VALUES, IQ4_VALUES

LEVELS = {
    "unsigned": np.arange(16),
    "signed": np.arange(-32, 32),
    "bytes": np.arange(-128, 128),
    "one": np.array([3.0]),
    "table": IQ4_VALUES,
    "far": np.arange(1000, 1004),
    "halves": np.arange(4) + 0.5,
    "fp4": np.unique(E2M1_VALUES),
    "fifty": np.sort(np.random.default_rng(1).standard_normal(50)),
    "palette": np.sort(np.round(np.random.default_rng(0).standard_normal(256), 2)),
}
SHAPES = [(1, 1), (7, 130), (64, 65), (33, 5), (5, 0)]


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Of every magnitude, ties, zeros of both signs, NaN and infinity."""
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    odd = rng.random(shape) < 0.05
    values[odd] = rng.choice([0.0, -0.0, 0.5, -0.5, 1.5, 1e-40, 3e38, np.nan, np.inf], odd.sum())
    return values.astype(np.float32)


def lines(rng: np.random.Generator, columns: int, rows: int, group: int, levels: np.ndarray) -> tuple[object, ...]:
    groups = -(-columns // group)
    scale = numbers(rng, groups, rows)
    scale[:, ::7] = 0
    return scale, numbers(rng, groups, rows), group, levels.astype(np.float32)[None]


def both(name: str, arguments: tuple[object, ...], written: tuple[int, ...]) -> None:
    made = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    expected = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    getattr(kernels, name)(*made)
    with np.errstate(all="ignore"):
        kernels.definition(name)(*expected)
    for at in written:
        assert np.array_equal(made[at], expected[at], equal_nan=made[at].dtype.kind == "f"), at


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_codes(isa: str, shape: tuple[int, int], levels: np.ndarray) -> None:
    rng, (columns, rows) = np.random.default_rng(len(levels)), shape
    square = numbers(rng, columns + 3, columns + 3)
    kept = lines(rng, columns, rows, 6, levels)
    codes, error = np.zeros(shape, np.uint8), np.full(shape, np.nan, np.float32)
    both("feedback_codes", (numbers(rng, *shape), numbers(rng, *shape), square, 3, *kept, codes, error), (1, 8, 9))
    codes = rng.integers(0, len(levels), shape, dtype=np.uint8)
    both("descend_codes", (numbers(rng, *shape), square, 2, *kept, codes, numbers(rng, *shape)), (0, 7, 8))


@pytest.mark.parametrize("rows", [0, 6, 132, 201])
def test_tables_of_runs_of_rows(isa: str, rows: int) -> None:
    rng, shape = np.random.default_rng(rows), (9, rows)
    square = numbers(rng, 12, 12)
    tables = np.stack([np.arange(8), np.sort(rng.standard_normal(8)), np.arange(8) - 4]).astype(np.float32)
    kept = *lines(rng, 9, rows, 4, tables)[:3], tables
    values, codes = numbers(rng, *shape), np.zeros(shape, np.uint8)
    given = values, values.copy(), square, 3, *kept, codes, np.full(shape, np.nan, np.float32)
    both("feedback_codes", given, (1, 8, 9))
    run = [a[:, : rows // 3].copy() if isinstance(a, np.ndarray) and a.shape[1:] == (rows,) else a for a in given]
    run[7] = tables[:1]
    kernels.feedback_codes(*given)
    kernels.feedback_codes(*run)
    assert np.array_equal(codes[:, : rows // 3], run[8])
    codes = rng.integers(0, 8, shape, dtype=np.uint8)
    both("descend_codes", (numbers(rng, *shape), square, 2, *kept, codes, numbers(rng, *shape)), (0, 7, 8))


@pytest.mark.parametrize(
    ("height", "width", "terms"), [(1, 1, 1), (13, 49, 300), (6, 48, 256), (8, 17, 600), (0, 5, 3), (3, 40, 0)]
)
def test_products(isa: str, height: int, width: int, terms: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((height + 2, terms + 5), (terms, width)))
    both("add_products", (a, 1, 4, b, rng.standard_normal((height, width)).astype(np.float32)), (4,))


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200])
def test_factors(isa: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((3 * n, n)).astype(np.float32)
    gram = np.asarray(x.T @ x / len(x), np.float32)
    made, expected = gram.copy(), gram.copy()
    kernels.factorize(made)
    kernels.definition("factorize")(expected)
    assert np.array_equal(np.triu(made), np.triu(expected))
    upper, diagonal = np.triu(made, 1).astype(np.float64) + np.eye(n), made.diagonal().astype(np.float64)
    # Every entry is n products at most, of numbers that are at most the largest of the diagonal.
    assert np.abs(upper.T @ np.diag(diagonal) @ upper - gram).max() <= 4 * n * 2.0**-24 * gram.max()


def test_a_matrix_that_is_not_definite_shows_it(isa: str) -> None:
    gram = np.array([[1, 2], [2, 1]], np.float32)
    kernels.factorize(gram)
    assert gram[1, 1] < 0
    kernels.factorize(zeros := np.zeros((3, 3), np.float32))
    assert not zeros.any()


def test_stays_inside(isa: str, fenced) -> None:
    rng, shape = np.random.default_rng(0), (9, 67)
    square = fenced((9, 9), np.float32, rng.standard_normal((9, 9)))
    kept = [fenced((3, 67), np.float32, np.ones((3, 67))) for _ in range(2)]
    levels = fenced((1, 16), np.float32, np.arange(16)[None])
    values, adjusted, error = (fenced(shape, np.float32, rng.standard_normal(shape)) for _ in range(3))
    codes = fenced(shape, np.uint8)
    kernels.feedback_codes(values, adjusted, square, 0, *kept, 4, levels, codes, error)
    kernels.descend_codes(adjusted, square, 0, *kept, 4, levels, codes, error)
    kernels.add_products(square, 0, 0, values, adjusted)
    kernels.factorize(fenced((70, 70), np.float32, np.eye(70)))


def arguments() -> dict[str, object]:
    def f32(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    return {
        "values": f32(4, 8), "adjusted": f32(4, 8), "feedback": f32(6, 6), "first": 2, "scale": f32(2, 8), "bias": f32(2, 8),
        "group": 2, "levels": f32(1, 16), "codes": np.zeros((4, 8), np.uint8), "error": f32(4, 8),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("first", 3, ValueError), ("first", -1, ValueError), ("group", 0, ValueError), ("group", 1, ValueError),
        ("scale", np.zeros((2, 7), np.float32), ValueError), ("feedback", np.zeros((6, 7), np.float32), ValueError),
        ("levels", np.zeros((1, 257), np.float32), ValueError), ("levels", np.zeros((1, 0), np.float32), ValueError),
        ("levels", np.zeros((3, 16), np.float32), ValueError), ("levels", np.zeros((0, 16), np.float32), ValueError),
        ("codes", np.zeros((4, 8), np.int8), TypeError), ("values", np.zeros((4, 9), np.float32), ValueError),
        ("adjusted", np.zeros((4, 8)), TypeError),
    ],
)  # fmt: skip
def test_refused(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        kernels.feedback_codes(*(arguments() | {name: value}).values())
    moved = {key: kept for key, kept in (arguments() | {name: value}).items() if key != "values"}
    if name != "values":
        with pytest.raises(error):
            kernels.descend_codes(*moved.values())


def test_refused_beyond() -> None:
    def f32(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    given = arguments()
    del given["values"]
    given["codes"] = np.full((4, 8), 16, np.uint8)
    with pytest.raises(ValueError, match="beyond"):
        kernels.descend_codes(*given.values())
    for row, column in ((3, 0), (0, 3), (-1, 0)):
        with pytest.raises(ValueError, match="no 2 rows"):
            kernels.add_products(f32(4, 4), row, column, f32(2, 5), f32(2, 5))
    with pytest.raises(ValueError):
        kernels.factorize(f32(3, 4))
