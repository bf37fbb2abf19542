"""Mutations of UQFF shards: single tensors, and layers of 0.x within theirs, with the table right again."""

from __future__ import annotations

import json
import random
import re
import struct
from typing import Any

from fuzz.mutators import plain
from fuzz.mutators.values import near
from support.raw_files import safetensors_file

__all__ = ["is_uqff", "mutate"]

_KEYS = re.compile(rb'"uqff\.version\.|\.weight\.format"|"[0-9]+" ?: ?\{')
_LOOKED_AT = 1 << 12
_DTYPES = ("U8", "I8", "I16", "U32", "I32", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3")
_FIELDS = (
    "", ".format", ".dtype", ".shape", ".scales", ".zeros", ".biases", ".bits", ".group_size", ".axis", ".num_blocks",
    ".dequant_w_scale", ".quant_scale",
)  # fmt: skip

_Tensors = dict[str, tuple[str, list[Any], bytes]]


def is_uqff(raw: bytes) -> bool:
    return _table(raw) is not None


def _table(raw: bytes) -> dict[str, Any] | None:
    if len(raw) < 10 or raw[8:9] != b"{" or _KEYS.search(raw[:_LOOKED_AT]) is None:
        return None
    (length,) = struct.unpack_from("<Q", raw)
    try:
        table = json.loads(raw[8 : 8 + min(length, len(raw))])
    except (ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) else None


def _taken_apart(raw: bytes) -> _Tensors:
    """What a file holds, as far as its table can be followed."""
    (length,) = struct.unpack_from("<Q", raw)
    data, tensors = raw[8 + min(length, len(raw)) :], {}
    for key, about in (_table(raw) or {}).items():
        match about:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
                tensors[key] = dtype, shape, data[max(begin, 0) : max(end, 0)]
    return tensors


def _written(tensors: _Tensors) -> bytes:
    table, data = {}, bytearray()
    for key, (dtype, shape, raw) in tensors.items():
        table[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return safetensors_file(table, bytes(data))


def mutate(rng: random.Random, raw: bytes, donor: bytes = b"") -> bytes:
    """One tensor: its bytes, key or form; or one more, or fewer, or one of another file."""
    tensors = _taken_apart(raw)
    others = _taken_apart(donor) if is_uqff(donor) else tensors
    if not tensors or not others:
        return plain.mutate(rng, raw, donor)
    key = rng.choice(list(tensors))
    dtype, shape, data = tensors[key]
    match rng.randrange(10):
        case 0:
            del tensors[key]
        case 1:
            tensors = {_renamed(rng, key) if name == key else name: value for name, value in tensors.items()}
        case 2:
            name, value = rng.choice(list(others.items()))
            tensors[rng.choice((name, key, str(len(tensors))))] = value
        case 3:
            tensors[key] = rng.choice(_DTYPES), shape, data
        case 4:
            tensors[key] = dtype, rng.choice(([], [1], [1, *shape], shape[:-1], shape[::-1])), data
        case _:
            data = _number(rng, data) if rng.randrange(3) else plain.mutate(rng, data, donor)
            tensors[key] = dtype, [len(data)] if dtype == "U8" and len(shape) == 1 else shape, data
    return _written(tensors)


def _number(rng: random.Random, data: bytes) -> bytes:
    """A number near the front of a layer, where what describes it is, set to another; or a float made none."""
    if not data:
        return data
    size = rng.choice((1, 4, 4, 4))
    at = rng.randrange(min(len(data), rng.choice((8, 40, 4096))))
    if size == 4 and rng.randrange(8) == 0:
        return data[:at] + rng.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff", b"\x00\x00\x00\x80")) + data[at + 4 :]
    return plain.number_at(rng, data, at, size)


def _renamed(rng: random.Random, key: str) -> str:
    if key.isdecimal():
        return rng.choice((str(near(rng, int(key[:18]))), "0" + key, key + ".weight", "\u0663"))
    module = key.partition(".weight")[0]
    return rng.choice((module + ".weight" + rng.choice(_FIELDS), module + ".bias", key + "x", "7"))
