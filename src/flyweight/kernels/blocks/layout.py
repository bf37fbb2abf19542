"""Fields of the blocks of ggml, listed in docs/formats/ggml-blocks.md: one block a row of bytes, every field little-endian."""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import Array

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
"""The sixteen levels of iq4_nl and iq4_xs, in units of the scale."""

E2M1_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
"""The sixteen FP4 (E2M1) values, doubled; the block scale is halved to match."""

F16_NAN = np.frombuffer(b"\x00\x7e", dtype=np.uint8)
"""The scale of a block that cannot be encoded because a value in it is not finite."""

E8M0_NAN = 0xFF


def f16_field(blocks: Array, at: int) -> Array:
    """The half-precision field at byte `at` of every block, as f32. (n, 1)"""
    return np.asarray(blocks[:, at : at + 2].view("<f2"), dtype=np.float32)


def planes_of(packed: Array, run: int, bits: int) -> Array:
    """Codes of `bits` bits: in each run of bytes, byte i holds elements i, i + run, i + 2·run … from its low bits up."""
    n, nbytes = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    codes: Array = (packed.reshape(n, nbytes // run, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(n, nbytes * 8 // bits)


def to_planes(codes: Array, run: int, bits: int) -> Array:
    n, count = codes.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    shifted = codes.reshape(n, count // (run * 8 // bits), 8 // bits, run) << shifts
    joined: Array = np.bitwise_or.reduce(shifted, axis=2)
    return joined.reshape(n, count * bits // 8)


def half_e8m0(exponents: Array) -> Array:
    """2**(e − 128): the E8M0 scale 2**(e − 127), halved."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
