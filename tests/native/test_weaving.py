"""Codes of trellis-coded weights: the kernel equals its definition and finds the best path; tables are what the format says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flyweight import kernels

BITS = (2, 3, 4)


def costs(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of values in units of levels, some of no weight, some far beyond the levels."""
    scale = rng.choice(np.float32([0, 1e-4, 1.0, 3e4]), (1, count))
    wanted = (rng.standard_normal((1, count)) * rng.choice([1, 40, 1e5], (1, count))).astype(np.float32)
    return scale * scale, np.float32(-2) * scale * scale * wanted


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("count", "strip"), [(0, 5), (1, 1), (40, 40), (70, 33)])
def test_the_same_codes_everywhere(isa: str, bits: int, count: int, strip: int) -> None:
    rng = np.random.default_rng(bits * 100 + count)
    levels = kernels.window_levels(bits).astype(np.float32)[None]
    for table in (levels, rng.standard_normal((1, 4096)).astype(np.float32), np.zeros((1, 4096), np.float32)):
        square, linear = costs(rng, count)
        found, expected = np.full((2, 1, count), 255, np.uint8)
        reached, wanted = np.full((2, 1, count), np.nan, np.float32)
        kernels.weave(square, linear, strip, bits, table, found, reached)
        kernels.definition("weave")(square, linear, strip, bits, table, expected, wanted)
        assert np.array_equal(found, expected)
        assert np.array_equal(reached, wanted)


@pytest.mark.parametrize("bits", BITS)
def test_no_path_is_better(isa: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    count = 8 // bits
    levels = kernels.window_levels(bits).astype(np.float32)[None]
    square = rng.uniform(0.5, 2, (1, count)).astype(np.float32)
    wanted = rng.standard_normal((1, count)).astype(np.float32) * 40
    codes = np.empty((1, count), np.uint8)
    reached = np.empty((1, count), np.float32)
    kernels.weave(square, np.float32(-2) * square * wanted, 256, bits, levels, codes, reached)
    assert np.array_equal(reached[0], kernels.woven_levels(codes.T, bits)[:, 0])

    def loss(path: np.ndarray) -> float:
        reached = kernels.woven_levels(path.reshape(-1, 1), bits)[:, 0].astype(np.float64)
        return float((square * (wanted - reached) ** 2).sum())

    every = (np.array(path, np.uint8) for path in itertools.product(range(1 << bits), repeat=count))
    assert loss(codes) == pytest.approx(min(map(loss, every)), rel=1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_the_table_of_windows_is_the_sum_of_its_tables(bits: int) -> None:
    """Spelled out as a reader would, for every window."""
    a, b, c, d, s, r = kernels.WOVEN_TABLES[bits].astype(int)
    for window in range(0, 4096, 7):
        q = [window >> bits * back & (1 << bits) - 1 for back in range(12 // bits)] + [0]
        if bits == 4:
            e, h, before = q[0], q[0] ^ s[q[1]], q[1] ^ s[q[2]]
        elif bits == 3:
            four = [low | (high & 1) << 3 for low, high in itertools.pairwise(q)]
            e, h, before = four[0], four[0] ^ s[four[2]], four[1] ^ s[four[3]]
        else:
            four = [low | high << 2 for low, high in itertools.pairwise(q)]
            e, h, before = four[0], four[0] ^ s[four[2]], four[2] ^ s[four[4]]
        assert kernels.window_levels(bits)[window] == a[e] + b[h] + c[before] + d[h ^ r[before]]


@pytest.mark.parametrize("bits", BITS)
def test_levels_of_rows(bits: int) -> None:
    """A window ends at its row and begins in its strip."""
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (600, 3), dtype=np.uint8)
    levels, table = kernels.woven_levels(codes, bits), kernels.window_levels(bits)
    for row in (0, 1, 5, 255, 256, 257, 511, 512, 599):
        first = row // 256 * 256
        window = sum(codes[row - back].astype(int) << bits * back for back in range(12 // bits) if row - back >= first)
        assert np.array_equal(levels[row], table[window])


@pytest.mark.parametrize("bits", BITS)
def test_packed_codes_come_back(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, 128), dtype=np.uint8)
    packed = kernels.pack_woven(codes, bits)
    assert packed.shape == (5, 16 * bits)
    assert np.array_equal(kernels.unpack_woven(packed, bits), codes)


def test_the_rotation_is_its_own_inverse() -> None:
    values = np.random.default_rng(0).integers(-127, 128, (3, 192)).astype(np.float32)
    turned = kernels.rotate(values)
    assert np.array_equal(kernels.rotate(turned), 64 * values)
    matrix = kernels.rotate(np.eye(64, dtype=np.float32))
    assert np.array_equal(abs(matrix), np.ones((64, 64)))
    assert np.array_equal(turned[:, 64:128], values[:, 64:128] @ matrix)
    assert abs(kernels.rotation_signs(8960).mean()) < 0.03


@pytest.mark.parametrize(
    "changed",
    [{"bits": 5}, {"strip": 0}, {"strip": 5000}, {"square": np.zeros((1, 3), "f4")}, {"levels": np.zeros((1, 16), "f4")}],
    ids=str,
)
def test_refused(changed: dict[str, object]) -> None:
    column = np.zeros((1, 4), np.float32)
    arguments = {"square": column, "linear": column, "strip": 4, "bits": 2, "levels": np.zeros((1, 4096), np.float32)} | changed
    with pytest.raises(ValueError, match="must"):
        kernels.weave(**arguments, codes=np.zeros((1, 4), np.uint8), reached=column.copy())  # type: ignore[arg-type]
