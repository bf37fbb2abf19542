"""Textures against astcenc, the encoder and decoder of the format's owner: what it writes, and any block, decode alike.

Its decoder returns FP16 as the specification rounds it: C / 65536 towards zero, and 65535 as 1. Ours keeps C, so the comparison
rounds ours the same way: exact in every bit for C below 2048, in the upper eleven above. Error texels are NaN or magenta.
"""

from __future__ import annotations

import astc_encoder as encoder
import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs.astc import Astc
from flyweight.foundation.astc_footprints import FOOTPRINTS
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from support.astc_blocks import as_halves, every_mode

MAGENTA = np.float16([1, 0, 1, 1])


def context_of(width: int, height: int, effort: int = 60) -> object:
    return encoder.ASTCContext(encoder.ASTCConfig(encoder.ASTCProfile.LDR, width, height, 1, effort))


def theirs(blocks: np.ndarray, width: int, height: int, rows: int, columns: int) -> np.ndarray:
    """What astcenc decodes. (rows, columns, 4) FP16"""
    image = encoder.ASTCImage(encoder.ASTCType.F16, columns, rows)
    context_of(width, height).decompress(blocks.tobytes(), image, encoder.ASTCSwizzle())
    return np.frombuffer(image.data, np.float16).reshape(rows, columns, 4)


def ours(blocks: np.ndarray, width: int, height: int, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Red as UNORM16, and which blocks are illegal."""
    down, across = -(-rows // height), -(-columns // width)
    values, illegal = np.empty((rows, columns), np.float32), np.empty((down, across), np.uint8)
    kernels.astc_decode(blocks.reshape(down, -1), width, height, 1.0, 0.0, values, illegal)
    return np.rint(values.astype(np.float64) * 65535).astype(np.int64), illegal == 1


def colours(rows: int, columns: int) -> np.ndarray:
    """Four channels unlike one another, smooth here, noisy and flat there: all that an encoder has modes for."""
    rng = np.random.default_rng(rows)
    y, x = np.mgrid[:rows, :columns]
    waves = np.stack([np.sin(x / 5) * np.cos(y / 4), np.sin(y / 3 + 1), np.cos((x + y) / 7), np.sin(x * y / 90)], axis=-1)
    image = 0.5 + 0.5 * waves + rng.normal(0, 0.2, waves.shape) * (x > columns // 2)[..., None]
    image[rows // 2 :, : columns // 3] = image[rows // 2, 0]
    image[: rows // 3, columns // 3 :, 1:3] = image[: rows // 3, columns // 3 :, :1]
    image[..., 3] = np.where(x < columns // 4, 1, image[..., 3])
    return np.ascontiguousarray(image.clip(0, 1), np.float32)


@pytest.mark.parametrize("effort", [10, 98])
@pytest.mark.parametrize(("width", "height"), FOOTPRINTS)
def test_what_it_writes(width: int, height: int, effort: int) -> None:
    image = colours(101, 119)
    rows, columns = image.shape[:2]
    texture = encoder.ASTCImage(encoder.ASTCType.F32, columns, rows, 1, image.tobytes())
    stored = context_of(width, height, effort).compress(texture, encoder.ASTCSwizzle())
    blocks = np.frombuffer(stored, np.uint8)
    found, illegal = ours(blocks, width, height, rows, columns)
    assert not illegal.any()
    assert np.array_equal(as_halves(found), theirs(blocks, width, height, rows, columns)[..., 0])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("width", "height"), FOOTPRINTS)
def test_any_block(width: int, height: int, seed: int) -> None:
    blocks = every_mode(1000 * width + 10 * height + seed)
    count = len(blocks)
    found, illegal = ours(blocks, width, height, height, width * count)
    image = theirs(blocks, width, height, height, width * count).reshape(height, count, width, 4)
    error = np.isnan(image).any(axis=-1) | (image == MAGENTA).all(axis=-1)
    legal = ~illegal[0]
    assert legal.sum() > 100
    assert not np.isnan(image[:, legal]).any()
    assert np.array_equal(as_halves(found).reshape(height, count, width)[:, legal], image[..., 0][:, legal])
    # Only where partitions have modes of their own may some of them be HDR and others not: astcenc, as the specification has
    # it, shows the error in the texels of the former alone. We refuse the block.
    several, selector = (blocks[:, 1] & 0x18) > 0, (blocks[:, 2] >> 7 | blocks[:, 3] << 1) & 3
    mixed = several & (selector > 0)
    assert error[:, illegal[0] & ~mixed].all()
    assert error[:, illegal[0]].mean() > 0.9


@pytest.mark.parametrize(("width", "height"), FOOTPRINTS)
def test_what_we_store_is_what_it_reads(width: int, height: int) -> None:
    weights = np.random.default_rng(width).standard_normal((75, 91)).astype(np.float32)
    codec, spec = Astc(width, height), TensorSpec(weights.shape, DType.F32)
    parts = codec.encode(spec, weights)
    scale, zero = parts["pair"].view("<f4")[2:].astype(np.float64)
    image = theirs(parts["blocks"], width, height, *weights.shape)
    assert (image[..., :3] == image[..., :1]).all()  # grey
    assert (image[..., 3] == 1).all()
    # FP16 is at most 2⁻¹⁰ below UNORM16 / 65536, which is within 2⁻¹⁶ of UNORM16 / 65535.
    assert np.abs(zero + scale * image[..., 0].astype(np.float64) - codec.decode(spec, parts)).max() <= scale * (
        2**-10 + 2**-15
    )
