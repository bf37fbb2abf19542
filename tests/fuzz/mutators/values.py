"""What fields are set to: the numbers and texts around which checks go wrong."""

from __future__ import annotations

import random

__all__ = ["NUMBERS", "TEXTS", "near", "packed"]

NUMBERS = (
    0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 31, 32, 63, 64, 65, 127, 128, 255, 256, 320, 1023, 4096, 65535, 65536, 2**20, 2**24,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1,
)  # fmt: skip
TEXTS = (
    "", "x", "a", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "\x1b]0;t\x07", "é", "e\u0301", "\U0001f600",
    "0" * 64, "x" * 1025, "__metadata__", "weight", "model.safetensors", "model-00001-of-00002.safetensors", "config.json",
    "F32", "BF16", "F8_E4M3", "U8", "I64", "f32", "f16", "bf16", "q4_0", "q8_0", "affine", "lossless", "sparse", "masked",
    "llama", "gpt2", "INT4", "INT2", "NPCL", "<i8", "|i1", "<f4", "|O", "raw", "true", "1e999", "-1",
)  # fmt: skip


def near(rng: random.Random, value: int) -> int:
    """A number beside the one that is there, a power of two, or one of those above."""
    match rng.randrange(4):
        case 0:
            return value + rng.choice((-64, -32, -16, -8, -4, -1, 1, 2, 4, 8, 16, 32, 64))
        case 1:
            return 1 << rng.randrange(65)
        case 2:
            return value * rng.choice((2, 3, -1)) // rng.choice((1, 2))
        case _:
            return rng.choice(NUMBERS)


def packed(value: int, size: int) -> bytes:
    """Little-endian, wrapped to the size."""
    return (value & (1 << 8 * size) - 1).to_bytes(size, "little")
