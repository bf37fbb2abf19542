"""Metadata of GGUF files: keys in order, each with a typed value.

    string key   u32 value type   value
    string = u64 length, UTF-8 bytes;  array = u32 element type, u64 count, elements;  bool = one byte, 0 or 1

The type of a value is its label here: `u32`, `str`, `[str]`, `[[i32]]`. Arrays of numbers stay as they lie in the file
(`manifest.Numbers`); strings and nested arrays are made at once, as many as the cursor's budget allows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from flyweight.foundation.cursor import SCALARS, Cursor
from flyweight.foundation.errors import LimitError, UnsupportedError
from flyweight.foundation.limits import MAX_ARRAY_DEPTH, MAX_ARRAY_ITEMS, MAX_METADATA_BYTES, MAX_METADATA_KEYS
from flyweight.foundation.manifest import Numbers, Typed

VALUE_TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
"""Labels of metadata values; the id is the position."""
MAX_KEY_BYTES = 65535
_KEY_NBYTES = 13
"""The least a key takes: its length, one byte, the value's type."""
_IDS = {label: number for number, label in enumerate(VALUE_TYPES)}
_ITEM_NBYTES = {label: codec.size for label, codec in SCALARS.items()} | {"bool": 1, "str": 8, "array": 12}
"""The least an element of an array takes."""


_ARRAY_HEAD = struct.Struct("<IQ")
_OBJECTS_NBYTES = 512
"""What a key or a nested array is charged: more than its objects take, because it also takes a microsecond or two."""


def read_metadata(cursor: Cursor, count: int) -> dict[str, Typed]:
    metadata: dict[str, Typed] = {}
    start = cursor.offset
    for _ in range(cursor.count(count, _KEY_NBYTES, MAX_METADATA_KEYS, "metadata keys")):
        key = cursor.text(MAX_KEY_BYTES, "a metadata key")
        if not key:
            raise cursor.malformed("a metadata key is empty", "E_KEY")
        if key in metadata:
            raise cursor.malformed(f"metadata key '{key}' appears twice", "E_DUPLICATE_KEY")
        cursor.spend(_OBJECTS_NBYTES, "metadata")
        metadata[key] = Typed(*_read_value(cursor, _read_value_type(cursor), MAX_ARRAY_DEPTH))
        if cursor.offset - start > MAX_METADATA_BYTES:
            raise LimitError(f"metadata exceed {MAX_METADATA_BYTES} bytes", file=cursor.source.name, offset=cursor.offset)
    return metadata


def _value_type(cursor: Cursor, number: int) -> str:
    if number >= len(VALUE_TYPES):
        raise cursor.malformed(f"unknown value type {number}", "E_GGUF_VALUE_TYPE")
    return VALUE_TYPES[number]


def _read_value_type(cursor: Cursor) -> str:
    return _value_type(cursor, cursor.u32("a value type"))


def _read_value(cursor: Cursor, kind: str, depth: int) -> tuple[str, Any]:
    """The full type label and the value."""
    if kind == "str":
        return kind, cursor.text(what="a metadata string")
    if kind == "bool":
        return kind, cursor.numbers("bool", 1, "a bool")[0]
    if kind != "array":
        return kind, cursor.scalar(kind, f"a {kind} value")
    if not depth:
        raise cursor.malformed(f"arrays nested deeper than {MAX_ARRAY_DEPTH}", "E_ARRAY_DEPTH")
    number, count = _ARRAY_HEAD.unpack(cursor.take(_ARRAY_HEAD.size, "the type and length of an array"))
    item = _value_type(cursor, number)
    cursor.count(count, _ITEM_NBYTES[item], MAX_ARRAY_ITEMS, f"array items of type {item}")
    if item == "str":
        return "[str]", cursor.texts(count, "a string of an array")
    if item != "array":
        return f"[{item}]", cursor.numbers(item, count, f"an array of {item}")
    # Each inner array names its own type. We have one type per value, so they must agree.
    cursor.spend(count * _OBJECTS_NBYTES, "nested arrays")
    label, values = "[u8]", []
    for index in range(count):
        inner, value = _read_value(cursor, "array", depth - 1)
        if index and inner != label:
            raise cursor.malformed(f"an array has elements of {label} and of {inner}", "E_GGUF_VALUE_TYPE")
        label = inner
        values.append(value)
    return f"[{label}]", values


def pack_text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(8, "little") + raw


def _pack_value(kind: str, value: Any) -> Iterator[bytes]:
    if kind == "str":
        yield pack_text(value)
    elif not kind.startswith("["):
        yield bytes([value]) if kind == "bool" else SCALARS[kind].pack(value)
    else:
        item = kind[1:-1]
        yield struct.pack("<IQ", _IDS["array" if item.startswith("[") else item], len(value))
        if item == "str":
            yield from map(pack_text, value)
        elif item.startswith("["):
            for inner in value:
                yield from _pack_value(item, inner)
        elif isinstance(value, Numbers) and value.type == item:
            yield value.raw
        else:
            yield bytes(value) if item == "bool" else struct.pack(f"<{len(value)}{SCALARS[item].format[-1]}", *value)


def write_metadata(metadata: Mapping[str, Typed]) -> bytes:
    chunks = []
    for key, typed in metadata.items():
        if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
            raise UnsupportedError(f"a metadata key in GGUF has 1 to {MAX_KEY_BYTES} bytes", code="E_KEY")
        kind = "array" if typed.type.startswith("[") else typed.type
        chunks += [pack_text(key), _IDS[kind].to_bytes(4, "little"), *_pack_value(typed.type, typed.value)]
    return b"".join(chunks)
