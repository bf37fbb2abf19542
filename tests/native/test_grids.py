"""The quantizers' inner loops equal their definition bit for bit, on every instruction set, whatever the values."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight import kernels
from flyweight.kernels import grids

SHAPES = [(64, 1300), (1, 9), (7, 513), (0, 4), (5, 0), (32, 1)]


def values_of(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Every magnitude, ties, zeros of both signs, subnormals, NaN and infinity."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 4, shape)
    odd = rng.random(shape) < 0.2
    values[odd] = rng.choice([0.0, -0.0, 0.5, -0.5, 1.5, 1e-45, -1e-40, 3e38, np.nan, np.inf, -np.inf], odd.sum())
    return values.astype(np.float32)


def arguments_of(name: str, shape: tuple[int, int], weighted: bool, biased: bool, bits: int) -> tuple[object, ...]:
    rng = np.random.default_rng(bits)
    size, groups = shape
    levels = (1 << bits) - 1
    values = values_of(shape, bits)
    by = rng.random((size if weighted else 0, groups), np.float32)
    scale = (rng.standard_normal((1, groups)) * 10.0 ** rng.integers(-4, 3, (1, groups))).astype(np.float32)
    scale[:, ::7] = 0
    offset = (rng.standard_normal((1, groups)) * 4).astype(np.float32)
    one, five = np.full((1, groups), np.nan), np.full((5, groups), np.nan)
    codes = np.full(shape, 0xA5, np.uint8)
    match name:
        case "grid_codes":
            wide = (np.resize(part, (size, -(-groups // 5))) for part in (scale, offset))
            return values, *wide, 5, biased, levels, codes
        case "grid_loss":
            return values, by, scale, offset, biased, levels, one
        case "grid_sums":
            return values, by, scale, offset, biased, levels, 0 if biased else 1 << bits - 1, five
        case "hqq_codes":
            return values, scale, offset, levels, codes
        case _:
            return values, by, scale, offset, 10.5, levels, one.astype(np.float32), one.astype(np.float32)


@pytest.mark.parametrize("name", ["grid_codes", "grid_loss", "grid_sums", "hqq_codes", "hqq_round"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("biased", "bits"), [(True, 4), (False, 3), (True, 8), (False, 1)])
def test_equals_the_definition(isa: str, name: str, shape: tuple[int, int], weighted: bool, biased: bool, bits: int) -> None:
    made, expected = (arguments_of(name, shape, weighted, biased, bits) for _ in range(2))
    getattr(kernels, name)(*made)
    with np.errstate(all="ignore"):
        kernels.definition(name)(*expected)
    for mine, defined in zip(made, expected, strict=True):
        if isinstance(mine, np.ndarray):
            assert np.array_equal(mine, defined, equal_nan=mine.dtype.kind == "f")


def test_stays_inside(isa: str, fenced) -> None:
    values, by = values_of((3, 517)), np.ones((3, 517), np.float32)
    each = np.ones((1, 517), np.float32)
    inside = [fenced(a.shape, np.float32, a) for a in (values, by, each, each)]
    kernels.grid_loss(*inside, True, 15, fenced((1, 517), np.float64))
    kernels.grid_sums(*inside, False, 15, 8, fenced((5, 517), np.float64))
    kernels.hqq_round(*inside, 10.0, 15, fenced((1, 517), np.float32), fenced((1, 517), np.float32))
    kernels.hqq_codes(inside[0], *inside[2:], 15, fenced((3, 517), np.uint8))
    grid = fenced((3, 11), np.float32, np.ones((3, 11), np.float32))
    kernels.grid_codes(inside[0], grid, grid, 50, True, 15, fenced((3, 517), np.uint8))


def test_the_power_is_rounded_after_each_of_its_three_steps() -> None:
    x = np.float32(10.0 ** np.linspace(-0.9, 38, 200_000))
    log = np.log(x.astype(np.longdouble)).astype(np.float32)
    true = np.exp((log * np.float32(-0.3)).astype(np.longdouble))
    assert (np.abs(grids.power(x) - true) <= np.spacing(true.astype(np.float32)) * 0.5000001).all()


def test_small_errors_have_no_sparse_part() -> None:
    """What SURELY_DENSE says, for the largest β of HQQ."""
    edge = np.float64(grids.SURELY_DENSE)
    assert edge - edge**-0.3 / (10 * 1.01**9) < 0


def test_refused() -> None:
    v, g, f64 = np.zeros((2, 5), np.float32), np.zeros((1, 5), np.float32), np.zeros((1, 5))
    none, one, codes = np.zeros((0, 5), np.float32), np.zeros((2, 1), np.float32), np.zeros((2, 5), np.uint8)
    refused = [
        ("grid_codes", (v, one, one, 0, True, 15, codes)),
        ("grid_codes", (v, one, one, 5, True, 256, codes)),
        ("grid_codes", (v, g, g, 5, True, 15, codes)),
        ("grid_codes", (v, one, one, 5, True, 15, codes[:1])),
        ("grid_loss", (v, g, g, g, True, 15, f64)),
        ("grid_loss", (v, none, g, g, True, 0, f64)),
        ("grid_loss", (v, none, g, g[:, :4].copy(), True, 15, f64)),
        ("grid_sums", (v, none, g, g, True, 15, 0, f64)),
        ("hqq_codes", (v, g, g, 15, codes[:, :4].copy())),
        ("hqq_codes", (v, g, v, 15, codes)),
        ("hqq_round", (v, none, g, g, 10.0, 15, g.astype(np.float64), g)),
        ("hqq_round", (v, none, g, g, 10.0, 15, g, v)),
    ]
    for module in filter(None, (kernels, kernels._native)):
        for name, arguments in refused:
            with pytest.raises((TypeError, ValueError)):
                getattr(module, name)(*arguments)
