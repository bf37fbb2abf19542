"""Blocks of signed bytes with a scale of one byte."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight.codecs.f8q8 import F8q8
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec, has_rows


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def test_every_scale_and_every_code() -> None:
    """w = q · (E4M3(d) / 416), each step rounded to f32."""
    blocks = np.empty((256, 8, 33), np.uint8)
    blocks[:, :, 0] = np.arange(256)[:, None]
    blocks[:, :, 1:] = np.arange(256).reshape(8, 32)
    out = F8q8().decode(f32(256, 256), {"blocks": blocks.reshape(256, -1)})
    scale = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32) / np.float32(416)
    codes = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
    assert np.array_equal(out, codes[None] * scale[:, None], equal_nan=True)


@pytest.mark.parametrize("shape", [(3, 64), (2, 2, 32), (5, 7), (2, 3, 33), (1,), (32,), (70,)])
def test_rows_of_whole_blocks_are_rows_and_others_one_run(shape: tuple[int, ...]) -> None:
    spec, values = f32(*shape), np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    codec = F8q8()
    parts = codec.encode(spec, values)
    count = -(-spec.size // 32)
    assert parts["blocks"].size == 33 * count
    assert has_rows(spec, codec.layout(spec)) == (shape[-1] % 32 == 0 or len(shape) == 1)
    blocks = parts["blocks"].reshape(count, 33)
    padded = np.pad(values.reshape(-1), (0, count * 32 - spec.size)).reshape(count, 32)
    assert not blocks.reshape(-1)[len(blocks.reshape(-1)) - (count * 32 - spec.size) :].any()
    out = codec.decode(spec, parts)
    assert np.array_equal(np.concatenate([*codec.decoded_runs(spec, parts)]), out.reshape(-1))
    scale = blocks[:, 0].view(ml_dtypes.float8_e4m3fn).astype(np.float32) / np.float32(416)
    # The scale reaches the greatest magnitude, so that no value errs by more than half a step.
    assert (np.abs(padded).max(axis=1) <= 127 * scale * (1 + 2.0**-22)).all()
    error = np.abs(np.pad(out.reshape(-1), (0, count * 32 - spec.size)).reshape(count, 32) - padded)
    assert (error <= scale[:, None] * 0.50001).all()


def test_magnitudes_beyond_the_greatest_scale_are_refused() -> None:
    spec = f32(1, 32)
    reached = 127 * 448 / 416
    out = F8q8().decode(spec, F8q8().encode(spec, np.full((1, 32), reached, np.float32)))
    assert np.allclose(out, reached, rtol=1e-6)
    with pytest.raises(UnsupportedError) as refused:
        F8q8().encode(spec, np.full((1, 32), 137, np.float32))
    assert refused.value.code == "E_BLOCK_RANGE"


def test_tiny_and_zero_blocks() -> None:
    values = np.zeros((1, 64), np.float32)
    values[0, 32:] = 2.0**-9 / 416  # one step of the least scale
    out = F8q8().decode(f32(1, 64), F8q8().encode(f32(1, 64), values))
    assert np.array_equal(out, values)


@pytest.mark.parametrize("d", [0x7F, 0xFF])
def test_a_scale_that_is_nan_is_complained_about(d: int) -> None:
    blocks = np.zeros((1, 66), np.uint8)
    blocks[0, 33] = d
    assert F8q8().check_values(f32(1, 64), {"blocks": blocks}) == "block 1 has a scale that is NaN"
