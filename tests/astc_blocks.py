"""ASTC blocks to try: every mode with every number of partitions, blocks of one colour, and the rest at random."""

from __future__ import annotations

import numpy as np

__all__ = ["every_mode", "one_colour"]


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
