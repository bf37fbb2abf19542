"""Mutations of .wdelta files: the header as JSON, records and the arrays in them, checksums right again; now and then not."""

from __future__ import annotations

import random
import struct

from fuzz.mutators import json_text, plain
from fuzz.mutators.values import near
from support.wdelta_files import MAGIC, Field, taken_apart, written

__all__ = ["mutate"]

_DTYPES = (b"uint8", b"int8", b"uint16", b"uint32", b"uint64", b"int32", b"int64", b"float16", b"float32", b"bool", b"object",
           b">f4", b"")  # fmt: skip
_ITEM_NBYTES = {b"uint16": 2, b"float16": 2, b"uint32": 4, b"int32": 4, b"float32": 4, b"uint64": 8, b"int64": 8, b"float64": 8}


def _refitted(record: Field, data: bytes) -> Field:
    """With other bytes, of whole elements, and what is said of them right."""
    size = _ITEM_NBYTES.get(bytes(record.dtype) if isinstance(record.dtype, bytes) else record.dtype.encode(), 1)
    data = data[: len(data) // size * size]
    return record._replace(data=data, shape=(len(data) // size,), nbytes=len(data))


def _record(rng: random.Random, record: Field, others: list[Field], donor: bytes) -> Field:
    match rng.randrange(8):
        case 0:
            return record._replace(tensor=rng.choice(others).tensor)
        case 1:
            return record._replace(field=rng.choice(others).field)
        case 2:
            return record._replace(dtype=rng.choice(_DTYPES))
        case 3:
            return record._replace(shape=(near(rng, len(record.data)) % 2**64,), rank=rng.choice((None, None, 0, 2, 2**32 - 1)))
        case 4:
            return record._replace(nbytes=near(rng, len(record.data)) % 2**64)
        case 5 if record.field in (b"ends", b"indices", b"outlier_idx") and len(record.data) >= 8:
            at = rng.randrange(len(record.data) // 8) * 8
            (value,) = struct.unpack_from("<Q", record.data, at)
            return record._replace(data=record.data[:at] + struct.pack("<Q", near(rng, value) % 2**64) + record.data[at + 8 :])
        case _:
            return _refitted(record, plain.mutate(rng, record.data, donor))


def _records(rng: random.Random, records: list[Field], donor: list[Field]) -> list[Field]:
    if not records:
        return donor
    at = rng.randrange(len(records))
    match rng.randrange(8):
        case 0:
            return records[:at] + records[at + 1 :]
        case 1:
            return [*records, records[at]]
        case 2:
            return rng.sample(records, len(records))
        case 3 if donor:
            taken = rng.choice(donor)
            return [
                *records[:at],
                records[at]._replace(data=taken.data, shape=taken.shape, nbytes=taken.nbytes),
                *records[at + 1 :],
            ]
    data = rng.choice(donor).data if donor else b""
    return [*records[:at], _record(rng, records[at], records, data), *records[at + 1 :]]


def mutate(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    """As text and records where the file can still be taken apart, and as bytes where it cannot."""
    way = rng.randrange(10)
    if way == 0:
        return plain.mutate(rng, raw, donor)
    try:
        header, records = taken_apart(raw)
        other, others = taken_apart(donor) if donor[:7] == MAGIC else (b"", list[Field]())
        version = int.from_bytes(raw[7:11], "little")
    except (ValueError, struct.error):
        return plain.mutate(rng, raw, donor)
    if way == 1:
        version = rng.choice((1, 2, 2, 2, 3))
    elif way < 6:
        header = json_text.mutate(rng, header, other)
    else:
        for _ in range(rng.choice((1, 1, 2))):
            records = _records(rng, records, others)
    return written(header, records, version=version, digest=rng.randrange(30) > 0)
