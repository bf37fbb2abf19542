"""The native decoder of textures equals its definition: every mode, every footprint, any bytes, whatever the image's size."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from flyweight import kernels
from flyweight.foundation.astc_footprints import FOOTPRINTS
from support.astc_blocks import every_mode, one_colour


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.all((found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))))


@cache
def defined(width: int, height: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks, values and flags; the definition takes a while, so once for all instruction sets."""
    blocks = every_mode(seed).reshape(64, -1)
    values, illegal = np.empty((64 * height, 128 * width), np.float32), np.empty((64, 128), np.uint8)
    kernels.definition("astc_decode")(blocks, width, height, 1.7, -0.3, values, illegal)
    return blocks, values, illegal


@pytest.mark.parametrize(("width", "height"), FOOTPRINTS)
def test_every_mode(isa: str, width: int, height: int) -> None:
    blocks, expected, flags = defined(width, height, width * height)
    values, illegal = np.full_like(expected, np.nan), np.full_like(flags, 0xA5)
    kernels.astc_decode(blocks, width, height, 1.7, -0.3, values, illegal)
    assert np.array_equal(illegal, flags)
    assert same(values, expected)
    assert 0.01 < 1 - flags.mean() < 0.5  # both kinds are there


@pytest.mark.parametrize(("width", "height"), [(4, 4), (5, 4), (8, 5), (12, 12)])
def test_every_edge(isa: str, fenced, width: int, height: int) -> None:
    blocks, whole, flags = defined(width, height, width * height)
    for rows in (0, 1, height - 1, height, height + 1, 3 * height - 2):
        for columns in (0, 1, width - 1, width, width + 1, 4 * width - 3):
            down, across = -(-rows // height), -(-columns // width)
            some = fenced((down, across * 16), np.uint8, blocks[:down, : across * 16])
            values, illegal = fenced((rows, columns), np.float32), fenced((down, across), np.uint8)
            kernels.astc_decode(some, width, height, 1.7, -0.3, values, illegal)
            assert same(values, np.ascontiguousarray(whole[:rows, :columns]))
            assert np.array_equal(illegal, flags[:down, :across])


@pytest.mark.parametrize(("scale", "zero"), [(0.0, -0.0), (np.inf, 1.0), (np.nan, 0.0), (3e38, 3e38), (1e-42, 0.0)])
def test_any_scale(isa: str, scale: float, zero: float) -> None:
    blocks = np.stack([one_colour(red) for red in (0, 1, 40000, 65535)]).reshape(1, -1)
    found, expected = (np.empty((5, 32), np.float32) for _ in range(2))
    illegal = np.empty((1, 4), np.uint8)
    kernels.astc_decode(blocks, 8, 5, scale, zero, found, illegal)
    with np.errstate(all="ignore"):
        kernels.definition("astc_decode")(blocks, 8, 5, scale, zero, expected, illegal)
    assert same(found, expected)
    assert not illegal.any()
