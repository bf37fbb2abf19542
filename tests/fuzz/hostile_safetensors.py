"""Hostile safetensors files, each broken in one way."""

from __future__ import annotations

import json
from typing import Any

from support.fuzz_cases import Case
from support.raw_files import safetensors_file, tensor_json

U8_2 = tensor_json("U8", [2], 0, 2)


def lone(table: dict[str, Any] | bytes, code: str, data: bytes = b"", *, length: int | None = None) -> Case:
    return Case({"model.safetensors": safetensors_file(table, data, length=length)}, code)


def one(dtype: Any, shape: Any, begin: Any, end: Any, code: str, data: bytes = b"") -> Case:
    return lone({"w": tensor_json(dtype, shape, begin, end)}, code, data)


def described(about: Any, code: str, *, exit_code: int = 3) -> Case:
    """A file whose description of encoded tensors lies."""
    text = about if isinstance(about, str) else json.dumps(about)
    table = {"__metadata__": {"flyweight.tensors": text}, "w.codes": U8_2, "w.scale": tensor_json("F32", [1], 2, 6)}
    return Case({"model.safetensors": safetensors_file(table, bytes(6))}, code, exit_code=exit_code)


ABOUT = {
    "shape": [2], "dtype": "f32", "codec": {"name": "strange", "params": {}},
    "parts": {"codes": "w.codes", "scale": "w.scale"},
}  # fmt: skip


def typed(rows: Any) -> Case:
    text = rows if isinstance(rows, str) else json.dumps(rows)
    return lone({"__metadata__": {"flyweight.metadata": text}}, "E_METADATA")


HOSTILE: dict[str, Case] = {
    # the frame
    "empty file": Case({"model.safetensors": b""}, "E_TRUNCATED"),
    "seven bytes": Case({"model.safetensors": b"\x02\0\0\0\0\0\0"}, "E_TRUNCATED"),
    "header length 2^64-1": lone({"w": U8_2}, "E_HEADER_SIZE", b"ab", length=2**64 - 1),
    "header of 99 MB in a short file": lone({"w": U8_2}, "E_TRUNCATED", b"ab", length=99_000_000),
    "header length 0": lone(b"", "E_HEADER", b"{}"),
    "header of spaces before the brace": lone(b"  {}", "E_HEADER"),
    "byte order mark": lone(b"\xef\xbb\xbf{}", "E_HEADER"),
    "list instead of an object": lone(b"[{}]", "E_HEADER"),
    "header cut in the middle": lone(b'{"w":{"dtype":"U8","sha', "E_JSON"),
    "NUL padding": lone(b"{}\0\0\0\0\0\0", "E_JSON"),
    "not UTF-8": lone(b'{"\xff":1}', "E_UTF8"),
    "lone surrogate": lone(b'{"__metadata__":{"a":"\\ud800"}}', "E_UTF8"),
    "control character": lone(b'{"__metadata__":{"a":"\x01"}}', "E_JSON"),
    "NaN as a dimension": lone(b'{"w":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', "E_JSON", b"a"),
    "number of 5,000 digits": lone(b'{"w":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % (b"9" * 5000), "E_JSON", b"a"),
    "number out of range": lone(b'{"w":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}}', "E_JSON", b"a"),
    "JSON 200,000 deep": lone(b'{"w":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "E_JSON_DEPTH"),
    "JSON 65 deep": lone(b'{"w":' + b"[" * 64 + b"]" * 64 + b"}", "E_JSON_DEPTH"),
    "unterminated string of escapes": lone(b'{"' + b'\\"' * 500_000, "E_JSON"),
    # duplicates
    "duplicate tensor": lone(b'{"w":%s,"w":%s}' % ((json.dumps(U8_2).encode(),) * 2), "E_JSON_DUPLICATE", b"ab"),
    "duplicate field": lone(b'{"w":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', "E_JSON_DUPLICATE", b"ab"),
    "duplicate after unescaping": lone(
        b'{"w":%s,"\\u0077":%s}' % ((json.dumps(U8_2).encode(),) * 2), "E_JSON_DUPLICATE", b"ab"
    ),
    "duplicate metadata key": lone(b'{"__metadata__":{"a":"b","a":"c"}}', "E_JSON_DUPLICATE"),
    # the table
    "unknown element type": one("X9", [2], 0, 10**9, "E_DTYPE", b"ab"),
    "element type as a number": one(7, [2], 0, 2, "E_DTYPE", b"ab"),
    "element type in lower case": one("u8", [2], 0, 2, "E_DTYPE", b"ab"),
    "missing offsets": lone({"w": {"dtype": "U8", "shape": [2]}}, "E_HEADER", b"ab"),
    "extra field": lone({"w": U8_2 | {"strides": [1]}}, "E_HEADER", b"ab"),
    "tensor as a list": lone({"w": ["U8", [2], [0, 2]]}, "E_HEADER", b"ab"),
    "empty name": lone({"": U8_2}, "E_NAME", b"ab"),
    "name of 2,000 bytes": lone({"w" * 2000: U8_2}, "E_NAME", b"ab"),
    "NUL in a name": lone({"a\0b": U8_2}, "E_NAME", b"ab"),
    "shape as a number": one("U8", 2, 0, 2, "E_SHAPE", b"ab"),
    "negative dimension": one("U8", [-2], 0, 2, "E_SHAPE", b"ab"),
    "two negative dimensions": one("U8", [-1, -2], 0, 2, "E_SHAPE", b"ab"),
    "minus zero": lone(b'{"w":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', "E_SHAPE"),
    "fractional dimension": one("U8", [2.0], 0, 2, "E_SHAPE", b"ab"),
    "true as a dimension": one("U8", [True, 2], 0, 2, "E_SHAPE", b"ab"),
    "rank 9": one("U8", [1] * 9, 0, 1, "E_RANK", b"a"),
    "rank 100,000": one("U8", [1] * 100_000, 0, 1, "E_RANK", b"a"),
    "element count wraps to 4": one("U8", [4194305, 4194305, 211106198978564], 0, 4, "E_SHAPE", b"abcd"),
    "zero times 2^63": one("U8", [0, 2**63], 0, 0, "E_SHAPE"),
    "three offsets": lone({"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2, 2]}}, "E_OFFSETS", b"ab"),
    "offset as text": one("U8", [2], "0", 2, "E_OFFSETS", b"ab"),
    "negative offset": one("U8", [2], -2, 0, "E_OFFSETS", b"ab"),
    "offsets reversed": one("U8", [2], 2, 0, "E_SIZE", b"ab"),
    "declared more than there is": one("F32", [1000, 1000], 0, 4_000_000, "E_PAST_END", b"abcd"),
    "shape smaller than its bytes": one("U8", [1], 0, 2, "E_SIZE", b"ab"),
    "shape larger than its bytes": one("F32", [1000, 1000], 0, 4, "E_SIZE", b"abcd"),
    "half a byte": one("F4", [3], 0, 2, "E_SIZE", b"ab"),
    # the cover
    "two tensors on the same bytes": lone({"k": U8_2, "v": U8_2}, "E_OVERLAP", b"ab"),
    "overlap by one byte": lone({"k": U8_2, "v": tensor_json("U8", [2], 1, 3)}, "E_OVERLAP", b"abc"),
    "empty tensor inside another": lone({"k": U8_2, "v": tensor_json("U8", [0], 1, 1)}, "E_OVERLAP", b"ab"),
    "hole of four bytes": lone({"k": U8_2, "v": tensor_json("U8", [2], 6, 8)}, "E_HOLE", bytes(8)),
    "hole at the start": one("U8", [2], 4, 6, "E_HOLE", bytes(6)),
    "trailing archive": lone({"w": U8_2}, "E_TRAILING", b"ab" + b"PK\x03\x04"),
    "bytes but no tensors": lone({}, "E_TRAILING", b"ab"),
    "shape of true beside the same of 1": lone(
        {"k": tensor_json("U8", [1], 0, 1), "v": tensor_json("U8", [True], 1, 2)}, "E_SHAPE", b"ab"
    ),
    # metadata
    "metadata value not text": lone({"__metadata__": {"a": 1}}, "E_METADATA"),
    "metadata null": lone(b'{"__metadata__":null}', "E_METADATA"),
    "typed metadata not a list": typed({"a": 1}),
    "typed metadata with an unknown type": typed([["a", "u128", 1]]),
    "typed metadata out of range": typed([["a", "u8", 256]]),
    "typed metadata float beyond its type": typed([["a", "f32", 1e300]]),
    "typed metadata bool as number": typed([["a", "bool", 1]]),
    "typed metadata twice": typed([["a", "u8", 1], ["a", "u8", 1]]),
    "typed metadata nested too deep": typed([["a", "[[[[[u8]]]]]", []]]),
    "typed metadata empty array of no type": typed([["a", "[]", []]]),
    # encoded tensors
    "description not JSON": described("{", "E_JSON"),
    "description not an object": described([], "E_DESCRIPTION"),
    "description without a codec": described({"w": {"shape": [2]}}, "E_DESCRIPTION"),
    "description of nothing": described({"w": ABOUT | {"parts": {}}}, "E_DESCRIPTION"),
    "description of a missing part": described({"w": ABOUT | {"parts": {"codes": "x"}}}, "E_DESCRIPTION"),
    "description of a part that is a list": described({"w": ABOUT | {"parts": {"codes": ["w.codes"]}}}, "E_DESCRIPTION"),
    "part of two tensors": described({"v": ABOUT, "w": ABOUT}, "E_DESCRIPTION"),
    "nested codec parameters": described({"w": ABOUT | {"codec": {"name": "x", "params": {"a": []}}}}, "E_DESCRIPTION"),
    "described and plain": described({"w.scale": ABOUT | {"parts": {"codes": "w.codes"}}}, "E_DUPLICATE"),
    "described shape overflows": described({"w": ABOUT | {"shape": [2**62, 2**62]}}, "E_SHAPE"),
    "described element type unknown": described({"w": ABOUT | {"dtype": "f3"}}, "E_DTYPE", exit_code=4),
    "known codec with foreign parts": described(
        {"w": ABOUT | {"shape": [1, 32], "codec": {"name": "q4_0", "params": {}}}}, "E_PARTS"
    ),
    "known codec with parts of another size": described(
        {"w": {"shape": [1, 32], "dtype": "f32", "codec": {"name": "q4_0", "params": {}}, "parts": {"blocks": "w.codes"}}},
        "E_PART_SHAPE",
    ),
    "described name empty": described({"": ABOUT}, "E_NAME"),
}  # fmt: skip
