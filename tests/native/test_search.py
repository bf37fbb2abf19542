"""The encoders that search equal their definition bit for bit, on every instruction set, whatever the values and weights."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels

SEARCHED = pytest.mark.parametrize("name", kernels.SEARCHED)


def blocks_of_all_kinds(size: int, count: int, seed: int = 1) -> np.ndarray:
    """Every magnitude, outliers, constants, one sign, sparse, zeros of both signs, ties, overflow, NaN and infinity."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, size)) * 10.0 ** rng.integers(-12, 9, (count, 1))
    kind = rng.integers(0, 16, count)
    values[kind == 1] = rng.laplace(size=((kind == 1).sum(), size))
    values[kind == 2] = 0.0
    values[kind == 3] = rng.choice([0.0, -0.0], ((kind == 3).sum(), size))
    values[kind == 4] = rng.choice([1.5, -1.5, 0.0], ((kind == 4).sum(), size))
    values[kind == 5] = -0.37
    values[kind == 6] = np.abs(values[kind == 6])
    values[kind == 7] = -np.abs(values[kind == 7])
    values[kind == 8, 5] = np.nan
    values[kind == 9, size - 1] = np.inf
    values[kind == 10, : size // 2] = 0
    values[kind == 11, 7] *= 1000
    values[kind == 12] = rng.choice([3e38, -3e38, 1.0], ((kind == 12).sum(), size))
    values[kind == 13] = rng.integers(-40, 40, ((kind == 13).sum(), size)) / 8
    values[kind == 14] = rng.choice([2.0**-24, 2.0**-40, -(2.0**-30), 1e-45], ((kind == 14).sum(), size))
    return values.astype(np.float32)


def weights_of(size: int, rows: int) -> np.ndarray:
    rng = np.random.default_rng(rows)
    return (
        np.maximum(rng.exponential(size=(rows, size)) / 10, 2.0**-20).astype(np.float32)
        if rows > 1
        else np.ones((1, size), np.float32)
    )


def defined(name: str, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    out = np.empty((len(values), kernels.BLOCKS[name][1]), np.uint8)
    with np.errstate(all="ignore"):
        kernels.definition(f"encode_{name}")(values, weights, out)
    return out


@SEARCHED
@pytest.mark.parametrize("rows", [1, 3])
def test_many(isa: str, name: str, rows: int) -> None:
    size, nbytes = kernels.BLOCKS[name]
    values, weights = blocks_of_all_kinds(size, 1200, seed=rows), weights_of(size, rows)
    out = np.full((1200, nbytes), 0xA5, np.uint8)
    getattr(kernels, f"encode_{name}")(values, weights, out)
    assert np.array_equal(out, defined(name, values, weights))


@SEARCHED
def test_every_tail(isa: str, name: str) -> None:
    size, nbytes = kernels.BLOCKS[name]
    values, weights = blocks_of_all_kinds(size, 33), weights_of(size, 2)
    expected = defined(name, values, weights)
    room = np.empty((34, nbytes), np.uint8)
    assert defined(name, values[:0], weights).shape == (0, nbytes)
    for count in range(34):
        room[...] = 0xA5
        getattr(kernels, f"encode_{name}")(values[:count], weights, room[:count])
        assert np.array_equal(room[:count], expected[:count])
        assert (room[count:] == 0xA5).all()


@SEARCHED
def test_stays_inside(isa: str, fenced, name: str) -> None:
    size, nbytes = kernels.BLOCKS[name]
    source, weights = blocks_of_all_kinds(size, 3), weights_of(size, 2)
    out = fenced((3, nbytes), np.uint8)
    getattr(kernels, f"encode_{name}")(fenced((3, size), np.float32, source), fenced((2, size), np.float32, weights), out)
    assert np.array_equal(out, defined(name, source, weights))


@SEARCHED
@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0, 3e38])
def test_any_weights_give_some_block(isa: str, name: str, bad: float) -> None:
    """No promise about the bytes, but nothing is touched that is not given."""
    size, nbytes = kernels.BLOCKS[name]
    out = np.zeros((8, nbytes), np.uint8)
    getattr(kernels, f"encode_{name}")(blocks_of_all_kinds(size, 8), np.full((1, size), bad, np.float32), out)


def test_refused() -> None:
    f32, u8 = np.zeros((2, 256), np.float32), np.zeros((2, 144), np.uint8)
    for arguments in ((f32, f32[:0], u8), (f32, f32[:, :128].copy(), u8), (f32[:1], f32, u8), (f32, f32.astype("f8"), u8)):
        for module in filter(None, (kernels, kernels._native)):
            with pytest.raises((TypeError, ValueError)):
                module.encode_q4_k(*arguments)
