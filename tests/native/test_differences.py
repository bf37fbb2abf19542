"""Differences of two arrays: native kernels equal their definition, and stay within the arrays."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels

SETS = ("baseline", "avx2", "avx512")
COUNTS = [0, 1, 7, 15, 16, 63, 64, 65, 130, 1000]
F32_MAX = 0x7F7FFFFF


def changes_of(count: int, seed: int = 0) -> np.ndarray:
    """Differences as fine-tunes have them: many zeros, many equal magnitudes, some of any size."""
    rng = np.random.default_rng([count, seed])
    values = rng.normal(0, 1e-3, (1, count)).astype(np.float32)
    values[rng.random((1, count)) < 0.3] = 0
    values[rng.random((1, count)) < 0.2] = np.float32(-0.5)
    values[rng.random((1, count)) < 0.1] = np.float32(0.5)
    values[rng.random((1, count)) < 0.05] *= np.float32(1e30)
    return values


def same(name: str, fenced: Callable[..., np.ndarray], arguments: tuple, outputs: list[np.ndarray]) -> list[np.ndarray]:
    """Run the kernel on fenced copies, and its definition; compare what they write, and return it."""
    given = [fenced(a.shape, a.dtype, a) if isinstance(a, np.ndarray) else a for a in arguments]
    found = [fenced(out.shape, out.dtype, out) for out in outputs]
    wanted = [out.copy() for out in outputs]
    getattr(kernels, name)(*given, *found)
    if given and isinstance(given[0], np.ndarray) and given[0].dtype == ml_dtypes.bfloat16:
        given = [a.view(np.uint16) for a in given]
    kernels.definition(name)(*given, *wanted)
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other), name
    return found


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_difference(isa: str, fenced, dtype: type) -> None:
    for count in COUNTS:
        base, tuned = (changes_of(count, seed).astype(dtype) for seed in (1, 2))
        (out,) = same("difference", fenced, (base, tuned), [np.zeros((1, count), np.float32)])
        assert np.array_equal(out, tuned.astype(np.float32) - base.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_error_sums(isa: str, fenced, dtype: type) -> None:
    for count in COUNTS:
        reference, values = changes_of(count, 1).astype(dtype), changes_of(count, 2)
        x, y = fenced(reference.shape, reference.dtype, reference), fenced(values.shape, values.dtype, values)
        found, wanted = fenced((1, 5), np.float64), np.empty((1, 5))
        kernels.error_sums(x, y, found)
        kernels.definition("error_sums")(x.view(np.uint16) if dtype is ml_dtypes.bfloat16 else x, y, wanted)
        assert np.array_equal(found, wanted)
        wide = reference[0].astype(np.float32)
        error = (wide - values[0]).astype(np.float64)
        for sum_found, array in zip(found[0], (error, wide.astype(np.float64), values[0].astype(np.float64)), strict=False):
            exact = math.fsum((array * array).tolist())  # squares of f32 are exact in f64
            assert abs(sum_found - exact) <= (count / 8 + 7) * 2.0**-53 * exact
        assert found[0, 3:].tolist() == [np.abs(error).max(initial=0), np.count_nonzero(error)]


@pytest.mark.parametrize(
    ("x", "y"), [(np.nan, 1), (1, np.nan), (np.nan, np.nan), (np.inf, np.inf), (1, -np.inf), (3e38, -3e38)]
)
def test_error_sums_says_that_something_is_not_finite(isa: str, x: float, y: float) -> None:
    for place in (0, 9):  # in a whole vector, and in what is left
        reference, values, out = *changes_of(20).reshape(2, 1, 10), np.empty((1, 5))
        reference[0, place], values[0, place] = x, y
        kernels.error_sums(reference, values, out)
        assert not np.isfinite(out[0, 3])


@pytest.mark.parametrize(("low", "shift", "counters"), [(0, 15, 65537), (0x3A000000, 3, 40), (0x3F000000, 0, 2), (5, 30, 1)])
def test_magnitude_counts(isa: str, fenced, low: int, shift: int, counters: int) -> None:
    for count in COUNTS:
        outputs = [np.full((1, counters), 3, np.uint64), np.full((1, 1), 9, np.uint32)]
        for seed in range(3):
            delta = changes_of(count, seed)
            if seed == 2 and count:
                delta[0, -1] = np.nan
            same("magnitude_counts", fenced, (delta, low, shift), outputs)


@pytest.mark.parametrize("threshold", [0, 0x39000000, 0x3F000000, F32_MAX])
@pytest.mark.parametrize("ties", [0, 1, 17, 5000])
def test_keep_largest(isa: str, fenced, threshold: int, ties: int) -> None:
    for count in COUNTS:
        delta = changes_of(count)
        outputs = [
            np.zeros((1, count), np.int64),
            np.zeros((1, count), np.float32),
            np.array([[77, ties]], np.uint64),
            np.array([[np.inf, -np.inf]], np.float32),
        ]
        magnitudes = np.abs(delta).view(np.uint32)
        given = [fenced(delta.shape, np.float32, delta), threshold, 1 << 40]
        found = [fenced(out.shape, out.dtype, out) for out in outputs]
        kernels.keep_largest(*given, *found)
        kernels.definition("keep_largest")(*given, *outputs)
        kept = int(outputs[2][0, 0])
        assert kept == (magnitudes > threshold).sum() + min(ties, (magnitudes == threshold).sum())
        assert np.array_equal(found[2], outputs[2])
        assert np.array_equal(found[3], outputs[3])
        for one, other in zip(found[:2], outputs[:2], strict=True):  # beyond what is kept, anything may be written
            assert np.array_equal(one[:, :kept], other[:, :kept])


@pytest.mark.parametrize(("first", "columns"), [(0, 1), (0, 8), (5, 17), (3, 64), (999, 1000), (0, 1 << 40)])
def test_rows(isa: str, fenced, first: int, columns: int) -> None:
    for count in COUNTS:
        rows = (first + count - 1) // columns + 1 if count else 0
        rng = np.random.default_rng(count)
        same("magnitude_sums", fenced, (changes_of(count), first, columns), [rng.random((1, rows))])
        packed = rng.integers(0, 256, (1, -(-count // 8)), dtype=np.uint8)
        scales = rng.normal(size=(1, rows)).astype(np.float32)
        same("add_signs", fenced, (packed, first, columns, scales), [changes_of(count)])


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 1])
def test_places(isa: str, fenced, share: float) -> None:
    for count in COUNTS:
        rng, first = np.random.default_rng(count), 1 << 35
        places = (np.flatnonzero(rng.random(count) < share).astype(np.int64) + first).reshape(1, -1)
        some = changes_of(places.shape[1])
        same("add_at", fenced, (places, first, some), [changes_of(count)])
        codes = rng.integers(0, 16, (1, count), dtype=np.uint8)
        others = count - places.shape[1]
        same("drop_at", fenced, (codes, places, first), [np.zeros((1, others), np.uint8)])
        same("insert_at", fenced, (changes_of(others, 1), places, first, some), [np.zeros((1, count), np.float32)])


def test_nibbles(isa: str, fenced) -> None:
    levels = np.linspace(-1, 2, 16, dtype=np.float32).reshape(1, 16)
    for count in COUNTS:
        codes = np.random.default_rng(count).integers(0, 16, (1, count), dtype=np.uint8)
        (packed,) = same("pack_nibbles", fenced, (codes,), [np.zeros((1, -(-count // 2)), np.uint8)])
        (out,) = same("nibble_levels", fenced, (packed, levels, 0), [np.zeros((1, count), np.float32)])
        assert np.array_equal(out, levels[0, codes])
        if count > 1:
            (out,) = same("nibble_levels", fenced, (packed, levels, 1), [np.zeros((1, count - 1), np.float32)])
            assert np.array_equal(out, levels[0, codes[:, 1:]])
