"""Single codecs' kernels equal their definition: fp8, masks, signs, products of low rank, clusters of a line."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels

COLUMNS = [0, 1, 7, 8, 9, 63, 64, 65, 200]


def agree(kernel: str, inputs: tuple[object, ...], outputs: list[np.ndarray]) -> None:
    """Native outputs, every byte of them written, equal the definition's."""
    expected = [np.zeros_like(out) for out in outputs]
    plain = [x.view(np.uint16) if isinstance(x, np.ndarray) and x.dtype == ml_dtypes.bfloat16 else x for x in inputs]
    with np.errstate(all="ignore"):
        kernels.definition(kernel)(*plain, *expected)
    for out in outputs:
        out.reshape(-1).view(np.uint8)[...] = 0xA5
    getattr(kernels, kernel)(*inputs, *outputs)
    for found, wanted in zip(outputs, expected, strict=True):
        assert np.array_equal(found.view(f"u{found.itemsize}"), wanted.view(f"u{found.itemsize}"))


def numbers(rows: int, columns: int, seed: int, special: bool = True) -> np.ndarray:
    """Of many magnitudes, with ties, zeros of both signs, and what is not finite."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-6, 6, (rows, columns))).astype(np.float32)
    values = np.where(rng.random(values.shape) < 0.3, np.round(values * 64) / np.float32(64), values)
    odd = np.float32([0.0, -0.0, 1e-45, 3e38] + [np.nan, np.inf, -np.inf] * special)
    return np.where(rng.random(values.shape) < 0.1, rng.choice(odd, values.shape), values)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", COLUMNS)
def test_fp8_and_magnitudes(isa: str, fenced, dtype: type, columns: int) -> None:
    with np.errstate(all="ignore"):
        values = fenced((3, columns), dtype, numbers(3, columns, columns).astype(dtype))
    for group in (1, 8, 31, 128):
        groups = -(-columns // group)
        scale = fenced(
            (3, groups), np.float32, np.random.default_rng(group).choice(np.float32([1, 3e-3, 7, 1e-40]), (3, groups))
        )
        agree("magnitudes", (values, group), [fenced((3, groups), np.float32)])
        for divide in (False, True):
            for wide in (False, True):
                agree("fp8_codes", (values, scale, group, divide, wide), [fenced((3, columns), np.uint8)])


@pytest.mark.parametrize("wide", [False, True])
def test_fp8_rounds_every_tie_as_ml_dtypes_does(isa: str, wide: bool) -> None:
    kind = ml_dtypes.float8_e5m2 if wide else ml_dtypes.float8_e4m3fn
    line = np.arange(128, dtype=np.uint8).view(kind).astype(np.float32)
    line = line[np.isfinite(line)]
    edges = np.concatenate([line, (line[:-1] + line[1:]) / 2])
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, line[-1])])
    values = np.concatenate([edges, -edges])[None]
    out = np.empty(values.shape, np.uint8)
    kernels.fp8_codes(values, np.ones((1, 1), np.float32), values.shape[1], False, wide, out)
    assert np.array_equal(out, values.astype(kind).view(np.uint8))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_f8q8(isa: str, fenced, count: int) -> None:
    rng = np.random.default_rng(count)
    blocks = fenced((count, 33), np.uint8, rng.integers(0, 256, (count, 33)).astype(np.uint8))
    scales = fenced((1, 256), np.float32, numbers(1, 256, count, special=False))
    agree("f8q8_decode", (blocks, scales), [fenced((count, 32), np.float32)])
    values = fenced((count, 32), np.float32, numbers(count, 32, count))
    first = fenced((count, 1), np.uint8, rng.integers(0, 256, (count, 1)).astype(np.uint8))
    for inverse in (np.float32(1), np.float32(32), np.float32(1e-4), np.float32(np.inf)):
        each = fenced((count, 1), np.float32, np.full((count, 1), inverse))
        agree("f8q8_encode", (values, first, each), [fenced((count, 33), np.uint8)])


@pytest.mark.parametrize("count", [0, 1, 5])
def test_mxfp4_codes(isa: str, fenced, count: int) -> None:
    finite = numbers(count, 32, count, special=False)
    ties = np.random.default_rng(count).integers(-24, 25, (count, 32)).astype(np.float32) / 4
    for source in (finite, ties):
        for inverse in (1, 4, 2.0**-127, 2.0**127):
            each = fenced((count, 1), np.float32, np.full((count, 1), inverse, np.float32))
            agree("mxfp4_codes", (fenced((count, 32), np.float32, source), each), [fenced((count, 16), np.uint8)])


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_mark_gather_and_places(isa: str, fenced, bits: int, density: float) -> None:
    rng = np.random.default_rng(bits)
    word = np.dtype(f"u{bits // 8}")
    for columns in COLUMNS:
        source = rng.integers(0, 1 << bits, (5, columns), dtype=word) * (rng.random((5, columns)) < density)
        source[rng.random(source.shape) < 0.1] = 1 << bits - 1  # a sign and nothing else
        words = fenced((5, columns), word, source)
        for spare in (0, 3):
            mask = fenced((5, -(-columns // 8) + spare), np.uint8)
            for keep in ((1 << bits) - 1, (1 << bits - 1) - 1):
                agree("mark", (words, keep), [mask])
            for count in (0, 3, 5 * columns // 2, 5 * columns + 1):
                agree("gather", (mask, words), [fenced((1, count), word)])
                for index in (np.uint32, np.int64):
                    agree("places", (mask, columns), [fenced((1, count), index)])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_signs(isa: str, fenced, dtype: type) -> None:
    for columns in [*COLUMNS, 1000]:
        with np.errstate(all="ignore"):
            values = fenced((3, columns), dtype, numbers(3, columns, columns, special=False).astype(dtype))
        agree("sign_encode", (values,), [fenced((3, -(-columns // 8) + 1), np.uint8), fenced((3, 1), np.float64)])


@pytest.mark.parametrize("rank", [0, 1, 3, 64, 65, 130])
def test_products_of_low_rank(isa: str, fenced, rank: int) -> None:
    rng = np.random.default_rng(rank)
    for rows, columns in [(0, 5), (1, 1), (3, 17), (4, 64), (9, 200)]:
        left = fenced((rows, rank), np.float32, rng.standard_normal((rows, rank)))
        right = fenced((rank, columns), np.float32, rng.standard_normal((rank, columns)))
        start = rng.standard_normal((rows, columns)).astype(np.float32)
        out = fenced((rows, columns), np.float32, start)
        kernels.add_product(left, right, out)
        kernels.definition("add_product")(left, right, start)
        assert np.array_equal(out, start)


@pytest.mark.parametrize("clusters", [1, 2, 4, 16])
@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 100, 1000])
def test_centres(isa: str, fenced, clusters: int, count: int) -> None:
    rng = np.random.default_rng(count)
    source = rng.standard_normal((6, count)).astype(np.float32)
    source[1] = np.round(source[1] * 4) / 4  # few values, both zeros
    source[2] = source[2].astype(ml_dtypes.bfloat16)
    source[3] *= np.float32(1e30)
    source[4] = 0.5
    values = fenced((6, count), np.float32, source)
    heavy = rng.random((6, count)).astype(np.float32) * (rng.random((6, count)) < 0.8)
    for weights in (np.empty((0, count), np.float32), fenced((6, count), np.float32, heavy)):
        room = (
            fenced((3, 2 * count), np.uint64),
            fenced((3, 6 * (count + 1)), np.float64),
            fenced((3, clusters * (count + 1)), np.int32),
        )
        out, expected = fenced((6, clusters), np.float64), np.zeros((6, clusters))
        kernels.palette_centres(values, weights, *room, out)
        with np.errstate(all="ignore"):
            kernels.definition("palette_centres")(values, weights, *room, expected)
        assert np.array_equal(out.view(np.uint64), expected.view(np.uint64))
