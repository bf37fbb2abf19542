"""The affine kernels equal their NumPy definition bit for bit, on every instruction set."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels

BITS = range(1, 9)
COLUMNS = [0, 1, 5, 31, 32, 63, 64, 65, 257, 1024, 1025, 2100]
STREAMED = 16 << 20
DECODERS = {"decode_scale_bias": 2, "decode_scale_zero": 2, "decode_signed_bias": 2, "decode_symmetric": 1}
ZERO_DECODERS = ("decode_scale_zero_f16", "decode_signed_zero", "decode_signed_zero_f16")
"""To f32 alone."""
ENCODERS = {"encode_scale_bias": 2, "encode_signed_bias": 2, "encode_symmetric": 1, "encode_afq": 2}
"""How many arrays lie beside the codes."""


def rounding(kernel: str, stored: str) -> tuple[str, ...]:
    """The type that scales are rounded to, where the kernel rounds them."""
    return () if kernel == "encode_afq" else (stored,)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bits; one NaN is as good as another."""
    bits = f"u{found.itemsize}"
    return bool(np.all((found.view(bits) == expected.view(bits)) | (found != found) & (expected != expected)))


def twin(kernel: str, *arguments: object) -> None:
    with np.errstate(all="ignore"):
        kernels.definition(kernel)(*arguments)


def numbers(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    made = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    special = rng.choice([0.0, -0.0, 1e38, -1e38, 1e-40, np.inf, np.nan], shape)
    return np.where(rng.random(shape) < 0.1, special, made).astype(np.float32)


@pytest.mark.parametrize("kernel", DECODERS)
@pytest.mark.parametrize("bits", BITS)
def test_decode(isa: str, fenced, kernel: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for columns in COLUMNS:
        for group in (1, 7, 16, 64, 100, 5000):
            groups, nbytes = -(-columns // group), -(-columns * bits // 8) + columns % 3
            packed = fenced((3, nbytes), np.uint8, rng.integers(0, 256, (3, nbytes), dtype=np.uint8))
            beside = [fenced((3, groups), np.float32, numbers(rng, (3, groups))) for _ in range(DECODERS[kernel])]
            expected = np.empty((3, columns), np.float32)
            twin(kernel, packed, bits, *beside, group, expected)
            out = fenced((3, columns), np.float32)
            getattr(kernels, kernel)(packed, bits, *beside, group, out)
            assert same(out, expected)
            narrow = fenced((3, columns), ml_dtypes.bfloat16)
            getattr(kernels, kernel)(packed, bits, *beside, group, narrow)
            assert same(narrow, expected.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("kernel", ZERO_DECODERS)
@pytest.mark.parametrize("bits", BITS)
def test_decode_to_f32(isa: str, fenced, kernel: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for columns in COLUMNS:
        for group in (1, 7, 16, 64, 100, 5000):
            groups, nbytes = -(-columns // group), -(-columns * bits // 8) + columns % 3
            packed = fenced((3, nbytes), np.uint8, rng.integers(0, 256, (3, nbytes), dtype=np.uint8))
            scale, zero = (fenced((3, groups), np.float32, numbers(rng, (3, groups))) for _ in range(2))
            expected, out = np.empty((3, columns), np.float32), fenced((3, columns), np.float32)
            twin(kernel, packed, bits, scale, zero, group, expected)
            getattr(kernels, kernel)(packed, bits, scale, zero, group, out)
            assert same(out, expected)
            with pytest.raises(TypeError, match="out"):
                getattr(kernels, kernel)(packed, bits, scale, zero, group, out.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("kernel", DECODERS)
@pytest.mark.parametrize(("columns", "group"), [(1024, 64), (1040, 2000), (1024, 24), (1000, 50)])
def test_decode_past_the_caches(isa: str, kernel: str, columns: int, group: int) -> None:
    rng = np.random.default_rng(columns)
    tile, groups, nbytes = 8, -(-columns // group), columns // 2
    packed = rng.integers(0, 256, (tile, nbytes), dtype=np.uint8)
    beside = [numbers(rng, (tile, groups)) for _ in range(DECODERS[kernel])]
    values = np.empty((tile, columns), np.float32)
    twin(kernel, packed, 4, *beside, group, values)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        expected = values.astype(dtype)
        times = -(-STREAMED // expected.nbytes)
        many = [np.tile(array, (times, 1)) for array in (packed, *beside)]
        room = np.empty(expected.size * times + 16, dtype)
        for start in (0, 1, 8):
            room.view(np.uint8)[...] = 0xA5
            out = room[start : start + expected.size * times].reshape(-1, columns)
            getattr(kernels, kernel)(many[0], 4, *many[1:], group, out)
            assert same(out.reshape(times, tile, columns), np.broadcast_to(expected, (times, tile, columns)))
            assert (room[start + out.size :].view(np.uint8) == 0xA5).all()


def weights(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Rows of every magnitude, on and between grid points, constant, with zeros of both signs, overflow, NaN and infinity."""
    made = rng.standard_normal(shape) * 10.0 ** rng.integers(-44, 38, (shape[0], 1))
    made = np.clip(made, -3.4e38, 3.4e38).astype(np.float32)
    made[1] = np.round(rng.standard_normal(shape[1]) * 8) / 2
    made[2] = rng.choice(np.float32([0.0, -0.0]), shape[1])
    made[3] = -0.7
    made[4] = rng.choice(np.float32([3.4e38, -3.4e38, 1.0]), shape[1])
    made[5] *= np.where(rng.random(shape[1]) < 0.01, np.float32(np.nan), np.float32(1))
    made[6, shape[1] // 2 :] = np.inf
    made[7] = rng.standard_normal(shape[1]) * 0.02
    return made


@pytest.mark.parametrize("kernel", ENCODERS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("stored", kernels.STORED)
def test_encode(isa: str, fenced, kernel: str, bits: int, stored: str) -> None:
    rng = np.random.default_rng(bits)
    beside = ENCODERS[kernel]
    for columns in COLUMNS[1:]:
        for group in (1, 7, 32, 64, 5000):
            rows = 40
            groups, nbytes = -(-columns // group), -(-columns * bits // 8) + columns % 3
            values = fenced((rows, columns), np.float32, weights(rng, (rows, columns)))
            expected = [np.empty((rows, nbytes), np.uint8), *(np.empty((rows, groups), np.float32) for _ in range(beside))]
            twin(kernel, values, bits, group, *rounding(kernel, stored), *expected)
            found = [fenced(array.shape, array.dtype) for array in expected]
            for array in found:
                array.view(np.uint8)[...] = 0xA5
            getattr(kernels, kernel)(values, bits, group, *rounding(kernel, stored), *found)
            for one, other in zip(found, expected, strict=True):
                assert same(one, other)


@pytest.mark.parametrize("kernel", ENCODERS)
@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_encode_bf16_as_its_values(isa: str, fenced, kernel: str, bits: int) -> None:
    """bf16 lies in the middle between two codes often: there a product in place of the quotient would not do."""
    rng = np.random.default_rng(bits)
    beside = ENCODERS[kernel]
    for columns, group in ((64, 64), (1025, 32), (2100, 64), (1024, 16)):
        rows, groups, nbytes = 200, -(-columns // group), -(-columns * bits // 8)
        values = weights(rng, (rows, columns))
        values[8:100] = rng.integers(-256, 257, (92, columns)) / np.float32(8)
        with np.errstate(all="ignore"):
            narrow = fenced((rows, columns), ml_dtypes.bfloat16, values.astype(ml_dtypes.bfloat16))
        for stored in kernels.STORED:
            expected = [np.empty((rows, nbytes), np.uint8), *(np.empty((rows, groups), np.float32) for _ in range(beside))]
            twin(kernel, narrow.astype(np.float32), bits, group, *rounding(kernel, stored), *expected)
            found = [fenced(array.shape, array.dtype) for array in expected]
            getattr(kernels, kernel)(narrow, bits, group, *rounding(kernel, stored), *found)
            for one, other in zip(found, expected, strict=True):
                assert same(one, other)


def test_no_columns(isa: str) -> None:
    packed, scale = np.full((2, 3), 7, np.uint8), np.zeros((2, 0), np.float32)
    kernels.encode_symmetric(np.zeros((2, 0), np.float32), 4, 32, "f32", packed, scale)
    assert not packed.any()
