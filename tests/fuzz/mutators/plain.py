"""Mutations that know nothing of a format: bytes, runs of bytes, splices, cuts."""

from __future__ import annotations

import random

from fuzz.mutators.values import NUMBERS, near, packed

__all__ = ["mutate", "number_at"]


def number_at(rng: random.Random, raw: bytes, at: int, size: int) -> bytes:
    """The little-endian number at a place made another one."""
    if at < 0 or at + size > len(raw):
        return raw
    value = near(rng, int.from_bytes(raw[at : at + size], "little"))
    return raw[:at] + packed(value, size) + raw[at + size :]


def mutate(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    """One to three edits."""
    edited = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        size = len(edited)
        at = rng.randrange(size + 1)
        match rng.randrange(11):
            case 0 if size:
                edited[at % size] ^= 1 << rng.randrange(8)
            case 1 if size:
                edited[at % size] = rng.randrange(256)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                edited[at : at + width] = packed(rng.choice(NUMBERS), width)
            case 3:
                other = rng.randrange(size + 1)
                edited[at : at + 16], edited[other : other + 16] = edited[other : other + 16], edited[at : at + 16]
            case 4:
                del edited[at : at + rng.choice((1, 1, 2, 4, 8, 16, 64))]
            case 5:
                edited[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 8, 16)))
            case 6:
                edited[at:at] = edited[at : at + rng.choice((1, 4, 16, 64))]
            case 7:
                del edited[at:]
            case 8:
                edited += bytes(rng.choice((1, 3, 8, 32, 100)))
            case 9 if donor:
                begin = rng.randrange(len(donor))
                piece = donor[begin : begin + rng.choice((4, 16, 64, 256, 1024))]
                edited[at : at + rng.choice((0, len(piece)))] = piece
            case _ if size:
                width = rng.choice((1, 2, 4, 8))
                edited[:] = number_at(rng, bytes(edited), at % size, width)
    return bytes(edited)
