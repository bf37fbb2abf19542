"""The decoder of ASTC textures."""

from __future__ import annotations

from flyweight.kernels.dispatch import F32, U8, Array, check, running


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
    running["astc_decode"](blocks, width, height, scale, zero, out, illegal)
