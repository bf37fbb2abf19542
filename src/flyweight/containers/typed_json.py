"""Typed metadata as JSON text, for containers whose own metadata is only text.

    [[key, type, value], ...]

Types are those of `Typed`: `u32`, `f32`, `bool`, `str`, ... and arrays such as `[str]`, `[[i32]]`.
JSON has no NaN or infinity, so a float that is not finite is the hexadecimal text of its 64 bits;
every value survives the round trip bit for bit, and the order of keys is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from struct import pack, unpack
from typing import Any

from flyweight import strict_json
from flyweight.errors import MalformedError, UnsupportedError
from flyweight.limits import MAX_ARRAY_DEPTH, MAX_JSON_BYTES
from flyweight.manifest import Typed

__all__ = ["dumps", "loads"]

_INTEGERS = {f"{sign}{bits}": (bits, sign == "i") for bits in (8, 16, 32, 64) for sign in "ui"}
_RANGES = {
    label: (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    for label, (bits, signed) in _INTEGERS.items()
}
_FLOATS = ("f32", "f64")
_LARGEST_F32 = (2 - 2**-23) * 2.0**127


def dumps(metadata: Mapping[str, Typed]) -> str:
    """Row by row, so that long arrays are numbers in memory one at a time, and given up when no reader would take the text."""
    rows, nbytes = [], 0
    for key, typed in metadata.items():
        rows.append(strict_json.dumps([key, typed.type, _plain(typed.type, typed.value)]).decode())
        nbytes += len(rows[-1])
        if nbytes > MAX_JSON_BYTES:
            raise UnsupportedError(
                f"the metadata take more than {MAX_JSON_BYTES} bytes as JSON",
                code="E_METADATA",
                hint="write a format that keeps them typed, such as gguf",
            )
    return f"[{','.join(rows)}]"


def _plain(kind: str, value: Any) -> Any:
    if kind.startswith("["):
        inner = kind[1:-1]
        return [_plain(inner, item) for item in value] if inner.startswith("[") or inner in _FLOATS else list(value)
    if kind in _FLOATS and not isfinite(value):
        return pack(">d", value).hex()
    return value


def loads(text: str, *, file: str) -> dict[str, Typed]:
    rows = strict_json.loads(text.encode(), file=file)
    if not isinstance(rows, list):
        raise MalformedError("typed metadata must be a list", code="E_METADATA", file=file)
    metadata: dict[str, Typed] = {}
    for row in rows:
        match row:
            case [str(key), str(kind), value] if key not in metadata:
                metadata[key] = Typed(kind, _typed(kind, value, key, file, MAX_ARRAY_DEPTH))
            case _:
                raise MalformedError("a row of typed metadata is not [new key, type, value]", code="E_METADATA", file=file)
    return metadata


def _typed(kind: str, value: Any, key: str, file: str, depth: int) -> Any:
    if kind.startswith("[") and kind.endswith("]") and type(value) is list and depth:
        return _items(kind[1:-1], value, key, file, depth - 1)
    if kind in _RANGES and type(value) is int and _RANGES[kind][0] <= value <= _RANGES[kind][1]:
        return value
    if kind in _FLOATS:
        if type(value) is float and (kind == "f64" or abs(value) <= _LARGEST_F32):
            return value
        if type(value) is str and len(value) == 16 and value.isalnum() and value.isascii():
            try:
                return unpack(">d", bytes.fromhex(value))[0]
            except ValueError:
                pass
    if (kind == "bool" and type(value) is bool) or (kind == "str" and type(value) is str):
        return value
    raise MalformedError(f"the value of '{key}' is not of type '{kind}'", code="E_METADATA", file=file)


def _items(kind: str, values: list[Any], key: str, file: str, depth: int) -> list[Any]:
    """Token lists are long: text is checked in one pass."""
    if kind == "str" and all(type(value) is str for value in values):
        return values
    if not values:
        _typed(kind, _EXAMPLES.get(kind, []), key, file, depth)  # an empty array still needs a type that exists
    return [_typed(kind, value, key, file, depth) for value in values]


_EXAMPLES: dict[str, Any] = dict.fromkeys(_RANGES, 0) | dict.fromkeys(_FLOATS, 0.0) | {"bool": False, "str": ""}
