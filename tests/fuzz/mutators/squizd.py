"""Mutations of SQUIZD files: fields with all checksums made right again, the directory as JSON, blocks, appendices, splices."""

from __future__ import annotations

import random
from collections.abc import Callable

from fuzz.mutators import json_text, plain
from fuzz.mutators.values import packed
from support.squizd_files import directory_of, edited, patched, redigested, resealed

__all__ = ["mutate"]

_HEADER_FIELDS = (
    (4, 2), (6, 4), (10, 2), (12, 2), (14, 4), (18, 8), (26, 8), (128, 4), (132, 4), (136, 4), (140, 4), (144, 8), (160, 8),
    (168, 8), (176, 4), (180, 4), (184, 8), (192, 8),
)  # fmt: skip
_INDEX_FIELDS = ((0, 4), (4, 8), (12, 8), (20, 8), (28, 4))
_MAGICS = (b"SQDX", b"INT4", b"INT2", b"TCAW", b"ASTW", b"NPCL", b"SCZT", b"EGDH", b"ANLX", b"PK\x01\x02", b"PK\x05\x06")
_ERRORS = (AssertionError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)


def _repaired(raw: bytes, repair: Callable[[bytes], bytes]) -> bytes:
    """With right checksums, where there is still a directory to hold them."""
    try:
        return repair(raw)
    except _ERRORS:
        return raw


def field(rng: random.Random, raw: bytes) -> bytes:
    """A number of the header, of the index, or behind a magic."""
    match rng.randrange(3):
        case 0:
            at, size = rng.choice(_HEADER_FIELDS)
        case 1:
            at, size = rng.choice(_INDEX_FIELDS)
            at += 256 + 32 * rng.randrange(2)
        case _:
            places = [at for magic in _MAGICS if (at := raw.find(magic, 256)) >= 0]
            if not places:
                return plain.mutate(rng, raw)
            at, size = rng.choice(places) + 4 * rng.randrange(8), rng.choice((4, 8))
    return plain.number_at(rng, raw, at, size)


def directory(rng: random.Random, raw: bytes) -> bytes:
    """The directory changed, in its place, with its digest right."""

    def changed(raw: bytes) -> bytes:
        document = directory_of(raw)
        document.get("metadata", {}).pop("room", None)
        text = json_text.dumped(document)
        return edited(raw, json_text.mutate(rng, text))

    return _repaired(raw, changed)


def appendix(rng: random.Random, raw: bytes) -> bytes:
    """A field of an archive's records, where the file carries one."""
    at = raw.find(rng.choice((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")), rng.randrange(max(len(raw), 1)))
    at += rng.randrange(46)
    return patched(raw, at, packed(rng.choice((0, 1, 8, 0x2F, 0x5C, 0xFF)), 1)) if 256 <= at < len(raw) else raw


def mutate(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    match rng.randrange(8):
        case 0:
            return plain.mutate(rng, raw, donor)
        case 1:
            return _repaired(plain.mutate(rng, raw, donor), resealed)
        case 2 | 3:
            return _repaired(field(rng, raw), rng.choice((redigested, resealed)))
        case 4:
            return _repaired(appendix(rng, raw), resealed)
        case 5:
            return field(rng, raw)
        case _:
            return directory(rng, raw)
