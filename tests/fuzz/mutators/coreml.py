"""Mutations of Core ML packages: a field of a program, with the lengths around it right; records of a weight file."""

from __future__ import annotations

import random
import struct

from fuzz.mutators import plain
from fuzz.mutators.values import NUMBERS, TEXTS, near
from support.coreml_files import SENTINEL, Field, joined, message, split, varint

__all__ = ["is_program", "is_weight_file", "program", "weight_file"]

_RECORD = struct.pack("<I", SENTINEL)
_RECORD_FIELDS = ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8))
_WORDS = (
    b"const", b"main", b"CoreML5", b"CoreML6", b"CoreML8", b"CoreML99", b"w", b"y", b"val", b"name", b"data", b"scale",
    b"offset", b"indices", b"lut", b"mask", b"nonzero_data", b"shape", b"axis", b"vector_axis", b"constexpr_lut_to_dense",
    b"constexpr_affine_dequantize", b"constexpr_sparse_to_dense", b"constexpr_blockwise_shift_scale",
    b"constexpr_lut_to_sparse", b"constexpr_sparse_blockwise_shift_scale", b"constexpr_cast",
    b"@model_path/weights/weight.bin", b"@model_path/model.mlmodel", b"@model_path/../x",
    b"flyweight.names", b"flyweight.program", b'{"w": "u"}', b"linear", b"\xff\xfe",
)  # fmt: skip


def is_weight_file(raw: bytes) -> bool:
    return len(raw) >= 128 and raw[4:8] == b"\x02\0\0\0" and _RECORD in raw[64:]


def weight_file(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    """A number of the header or of a record; the bytes of blobs; the end."""
    match rng.randrange(6):
        case 0:
            return plain.mutate(rng, raw, donor)
        case 1:
            return plain.number_at(rng, raw, rng.choice((0, 4)), 4)
        case 2:
            return raw[: rng.randrange(len(raw))] if rng.randrange(2) else raw + bytes(rng.randrange(200))
    places = [at for at in range(64, len(raw) - 63, 64) if raw[at : at + 4] == _RECORD]
    if not places:
        return plain.mutate(rng, raw, donor)
    at, size = rng.choice(_RECORD_FIELDS)
    return plain.number_at(rng, raw, rng.choice(places) + at, size)


def is_program(raw: bytes) -> bool:
    fields = split(raw)
    return bool(fields) and any(number_of == 502 for number_of, _, _ in fields or ())


def program(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    """One field changed: as often near the leaves as their bytes are many."""
    if rng.randrange(12) == 0:
        return plain.mutate(rng, raw, donor)
    for _ in range(rng.choice((1, 1, 2, 3))):
        raw = _within(rng, raw, donor)
    return raw


def _within(rng: random.Random, raw: bytes, donor: bytes) -> bytes:
    fields = split(raw)
    if not fields:
        return _text(rng, raw, donor)
    weights = [4 if isinstance(content, int) else 4 + len(content) for _, _, content in fields]
    at = rng.choices(range(len(fields)), weights)[0]
    number_of, kind, content = fields[at]
    if isinstance(content, bytes) and kind == 2 and rng.randrange(6):
        others = split(donor) if donor else None
        inner = rng.choice([one for _, _, one in others if isinstance(one, bytes)] or [b""]) if others else b""
        fields[at] = number_of, kind, _within(rng, content, inner)
        return joined(fields)
    return joined(_listed(rng, fields, at, split(donor) if donor else None))


def _listed(rng: random.Random, fields: list[Field], at: int, others: list[Field] | None) -> list[Field]:
    """A field gone, twice, elsewhere, of another number or value, or one of another message."""
    number_of, kind, content = fields[at]
    match rng.randrange(8):
        case 0:
            return fields[:at] + fields[at + 1 :]
        case 1:
            small = isinstance(content, int) or len(content) < 64
            return fields + [fields[at]] * rng.choice((1, 1, 2, 40) if small else (1,))
        case 2:
            return rng.sample(fields, len(fields))
        case 3:
            return [*fields[:at], (rng.choice((1, 2, 3, 4, 5, 7, 100, 500, 502)), kind, content), *fields[at + 1 :]]
        case 4 if others:
            return [*fields[:at], rng.choice(others), *fields[at + rng.randrange(2) :]]
        case 5:
            return [*fields[:at], (number_of, 2, rng.choice(fields)[2] if rng.randrange(2) else b""), *fields[at + 1 :]]
        case 6 if isinstance(content, bytes) and kind == 2:  # a message inside itself
            return [*fields[:at], (number_of, 2, message(number_of, content)), *fields[at + 1 :]]
    new = near(rng, content) if isinstance(content, int) else plain.mutate(rng, content)
    return [*fields[:at], (number_of, kind, new), *fields[at + 1 :]]


def _text(rng: random.Random, raw: bytes, donor: bytes) -> bytes:
    """What is no message: a name, or numbers one behind the other."""
    match rng.randrange(4):
        case 0:
            return rng.choice(_WORDS)
        case 1:
            return rng.choice(TEXTS).encode("utf-8", "surrogatepass")
        case 2:
            return varint(rng.choice(NUMBERS))
    return plain.mutate(rng, raw, donor)
