"""The decoder of ASTC textures. What a block means, `texels`, is imported when the definition runs."""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import F32, U8, Array, check
from flyweight.kernels.registry import kernel

AT_ONCE = 4096
"""Blocks decoded together, to bound the memory."""


@kernel
def _astc_decode(blocks: Array, width: int, height: int, scale: float, zero: float, out: Array, illegal: Array) -> None:
    """zero + scale · t, t = texel / 65535, each rounded to f32. An illegal block has a 1 in `illegal`, and texels of 0."""
    from flyweight.kernels.textures.texels import texels

    rows, columns = out.shape
    down, across = illegal.shape
    flat = blocks.reshape(-1, 16)
    for start in range(0, down, step := max(AT_ONCE // max(across, 1), 1)):
        some = flat[start * across : (start + step) * across]
        found, bad = texels(some, width, height)
        image = found.reshape(-1, across, height, width).transpose(0, 2, 1, 3).reshape(-1, across * width)
        first = start * height
        values = image[: rows - first, :columns].astype(np.float32) / np.float32(65535)
        out[first : first + len(values)] = np.float32(zero) + np.float32(scale) * values
        illegal[start : start + step] = bad.reshape(-1, across)


def astc_decode(blocks: Array, width: int, height: int, scale: float, zero: float, out: Array, illegal: Array) -> None:
    """zero + scale · t of every texel, t its red in 0–1, and which blocks are illegal.

    blocks: u8 (down, 16 · across), each of width × height texels, out: f32 (rows, columns), illegal: u8 (down, across).
    """
    if not (4 <= width <= 12 and 4 <= height <= 12):
        raise ValueError(f"a block has 4 to 12 texels each way, not {width}×{height}")
    check("out", out, F32, (None, None), written=True)
    down, across = -(-out.shape[0] // height), -(-out.shape[1] // width)
    check("blocks", blocks, U8, (down, 16 * across))
    check("illegal", illegal, U8, (down, across), written=True)
    _astc_decode.run(blocks, width, height, scale, zero, out, illegal)
