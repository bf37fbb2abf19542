"""Sums of Gram matrices are right within what rounding allows, on every instruction set, and stay inside their arrays."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels

# tokens, columns, first, stop
SHAPES = [(1, 1, 0, 1), (3, 7, 2, 7), (257, 50, 0, 49), (512, 130, 100, 130), (131, 300, 43, 299), (0, 5, 1, 3), (4, 5, 2, 2)]


def bound(x: np.ndarray, first: int, stop: int, isa: str) -> np.ndarray:
    """Each input is within 2⁻⁹ of itself where it is rounded to bf16, so a product within 2⁻⁸ + 2⁻¹⁸. Products and sums in
    f32, of n terms and of what was there, at most 1 here, add n + 3 roundings of 2⁻²⁴ of all of it."""
    magnitudes = 1 + np.abs(x[:, first:stop]).T.astype(np.float64) @ np.abs(x[:, :stop])
    rounded = 2.0**-8 + 2.0**-18 if isa == "avx512bf16" else 0
    return (rounded + (len(x) + 3) * 2.0**-24) * magnitudes


@pytest.mark.parametrize(("tokens", "columns", "first", "stop"), SHAPES)
def test_sums(isa: str, tokens: int, columns: int, first: int, stop: int) -> None:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, columns)).astype(np.float32)
    was = rng.uniform(-1, 1, (stop - first, stop)).astype(np.float32)
    kernels.add_gram(x, first, out := was.copy())
    exact = was + x[:, first:stop].T.astype(np.float64) @ x[:, :stop]
    assert (np.abs(out - exact) <= bound(x, first, stop, isa)).all()


def test_numbers_of_few_bits_are_exact(isa: str) -> None:
    """Whole numbers that bf16 and every sum hold: no bit may be lost, whichever lane or tail they are in."""
    x = np.random.default_rng(0).integers(-8, 9, (301, 149)).astype(np.float32)
    kernels.add_gram(x, 20, out := np.zeros((100, 120), np.float32))
    assert np.array_equal(out, x[:, 20:120].T @ x[:, :120])


def test_the_same_in_parts(isa: str) -> None:
    """Rows of the result do not depend on which are asked for together."""
    x = np.random.default_rng(0).standard_normal((70, 64)).astype(np.float32)
    kernels.add_gram(x, 0, whole := np.zeros((64, 64), np.float32))
    kernels.add_gram(x, 37, part := np.zeros((27, 64), np.float32))
    assert np.array_equal(whole[37:], part)


def test_stays_inside(isa: str, fenced) -> None:
    for tokens, columns, first, stop in SHAPES:
        x = fenced((tokens, columns), np.float32, np.ones((tokens, columns)))
        kernels.add_gram(x, first, fenced((stop - first, stop), np.float32))


@pytest.mark.parametrize(("rows", "stop", "first"), [(2, 5, 2), (3, 9, 6), (6, 5, -1)])
def test_refused(rows: int, stop: int, first: int) -> None:
    with pytest.raises(ValueError, match="triangle"):
        kernels.add_gram(np.zeros((3, 8), np.float32), first, np.zeros((rows, stop), np.float32))
