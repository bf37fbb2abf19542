"""ASTC blocks to try: every mode with every number of partitions, blocks of one colour, and the rest at random."""

from __future__ import annotations

import numpy as np

__all__ = ["as_halves", "every_mode", "one_colour"]


def every_mode(seed: int) -> np.ndarray:
    """Bits 0–12 are every number in turn; what follows is noise. (8192, 16) uint8"""
    blocks = np.random.default_rng(seed).integers(0, 256, (8192, 16), dtype=np.uint8)
    head = np.arange(8192, dtype=np.uint16)
    blocks[:, 0] = head & 0xFF
    blocks[:, 1] = blocks[:, 1] & 0xE0 | head >> 8
    return blocks


def one_colour(red: int, corners: int = 2**52 - 1, flags: int = 0b110) -> np.ndarray:
    """An extent of one colour: mode, flags (HDR, then two reserved bits), four corners of 13 bits, red. (16,) uint8"""
    bits = 0x1FC | flags << 9 | corners << 12 | red << 64
    return np.frombuffer(bits.to_bytes(16, "little"), np.uint8)


def as_halves(texels: np.ndarray) -> np.ndarray:
    """UNORM16 as a decoder that returns FP16 rounds it: C / 65536 towards zero, and 65535 is 1."""
    wide = texels.astype(np.float64) / 65536
    halves = wide.astype(np.float16)
    halves = np.where(halves > wide, np.nextafter(halves, np.float16(0)), halves)
    return np.where(texels == 65535, np.float16(1), halves)
