"""The casts equal ml_dtypes and NumPy, over every sixteen-bit pattern and every f32 that rounds in a way of its own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs.casts import astype

EVERY = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
BF16 = np.dtype(ml_dtypes.bfloat16)


def edges() -> np.ndarray:
    """Every sixteen-bit float, the midpoints between them, and their neighbours; NaNs quiet and signalling; subnormals."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bf16 = np.concatenate([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    with np.errstate(all="ignore"):
        halves = EVERY.reshape(-1).view(np.float16).astype(np.float32).view(np.uint32)
    f16 = np.concatenate([halves + np.uint32(step & 0xFFFFFFFF) for step in (0, 0x0FFF, 0x1000, 0x1001, 1, -1)])
    steps = np.ldexp(np.float32(1), np.arange(-149, 128)).view(np.uint32)
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    return np.concatenate([bf16, f16, steps, steps + 1, steps - 1, random]).view(np.float32)


@pytest.fixture(params=["reference", "baseline", "avx2", "avx512"])
def everywhere(request: pytest.FixtureRequest):
    if request.param not in kernels.available():
        pytest.skip(f"no {request.param} kernels here")
    before = kernels.active()
    kernels.use(request.param)
    yield
    kernels.use(before)


@pytest.mark.usefixtures("everywhere")
def test_every_bf16_widens_as_ml_dtypes_does() -> None:
    out = np.empty((256, 256), np.float32)
    kernels.bf16_to_f32(EVERY.view(BF16), out)
    assert np.array_equal(out.view(np.uint32), EVERY.view(BF16).astype(np.float32).view(np.uint32))


@pytest.mark.usefixtures("everywhere")
def test_bf16_rounds_as_ml_dtypes_does() -> None:
    values = edges().reshape(1, -1)
    out = np.empty(values.shape, BF16)
    kernels.f32_to_bf16(values, out)
    with np.errstate(all="ignore"):
        assert np.array_equal(out.view(np.uint16), values.astype(BF16).view(np.uint16))


@pytest.mark.usefixtures("everywhere")
def test_every_f16_widens_as_numpy_does() -> None:
    out = np.empty((256, 256), np.float32)
    kernels.f16_to_f32(EVERY.view(np.float16), out)
    nan = np.isnan(EVERY.view(np.float16))
    with np.errstate(all="ignore"):
        assert np.array_equal(out.view(np.uint32)[~nan], EVERY.view(np.float16).astype(np.float32).view(np.uint32)[~nan])
    bits = EVERY[nan].astype(np.uint32)
    assert np.array_equal(out.view(np.uint32)[nan], (bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13)


@pytest.mark.usefixtures("everywhere")
def test_f16_rounds_as_numpy_does() -> None:
    values = edges().reshape(1, -1)
    out = np.empty(values.shape, np.float16)
    kernels.f32_to_f16(values, out)
    nan = np.isnan(values)
    with np.errstate(all="ignore"):
        assert np.array_equal(out.view(np.uint16)[~nan], values.astype(np.float16).view(np.uint16)[~nan])
    bits = values.view(np.uint32)[nan]
    assert np.array_equal(out.view(np.uint16)[nan], bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x3FF)


def test_every_length_and_start(isa: str, fenced) -> None:
    values = edges()[:64]
    for count in range(40):
        for narrow, kernel in ((BF16, "bf16"), (np.dtype(np.float16), "f16")):
            made = np.empty((1, count), np.uint16)
            with np.errstate(all="ignore"):
                kernels.definition(f"f32_to_{kernel}")(values[None, :count], made)
            out = fenced((1, count), narrow)
            getattr(kernels, f"f32_to_{kernel}")(fenced((1, count), np.float32, values[:count]), out)
            assert np.array_equal(out.view(np.uint16), made)
            back, wide = np.empty((1, count), np.float32), fenced((1, count), np.float32)
            with np.errstate(all="ignore"):
                kernels.definition(f"{kernel}_to_f32")(made, back)
            getattr(kernels, f"{kernel}_to_f32")(out, wide)
            assert np.array_equal(wide.view(np.uint32), back.view(np.uint32))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (2, 3, 4)])
def test_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    values = np.full(shape, 1.25, np.float32)
    for dtype in (BF16, np.dtype(np.float16), np.dtype(np.float64), np.dtype(np.float32)):
        made = astype(values, dtype)
        assert made.shape == shape
        assert made.dtype == dtype
        assert np.array_equal(astype(made, values.dtype), values)


def test_arrays_a_pointer_cannot_walk() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    misaligned = np.zeros(values.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(4, 6)
    misaligned[...] = values
    for array in (values.T, values[::2, ::3], misaligned):
        assert np.array_equal(astype(array, BF16), array.astype(BF16))
