"""Typed metadata as JSON, for files whose own metadata is only text.

    [[key, type, value], ...]

Types are those of `Typed`: `u32`, `f32`, `bool`, `str`, ... and arrays such as `[str]`, `[[i32]]`.
JSON has no NaN or infinity, so a float that is not finite is the hexadecimal text of its 64 bits;
every value survives the round trip bit for bit, and the order of keys is kept. Other tools write 1 for 1.0: that is a float
where one is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from math import inf, isfinite
from struct import pack, unpack
from typing import Any

from flyweight.foundation import strict_json
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_ARRAY_DEPTH, MAX_JSON_BYTES
from flyweight.foundation.manifest import Typed

_RANGES = {
    f"{sign}{bits}": (0, (1 << bits) - 1) if sign == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    for bits in (8, 16, 32, 64)
    for sign in "ui"
}
_FLOATS = ("f32", "f64")
_LARGEST_F32 = (2 - 2**-23) * 2.0**127
_PLAIN = {"bool": bool, "str": str}


def dumps(metadata: Mapping[str, Typed]) -> str:
    """Row by row, so that long arrays are numbers in memory one at a time, and given up when no reader would take the text."""
    rows, nbytes = [], 0
    for key, typed in metadata.items():
        rows.append(strict_json.dumps([key, typed.type, plain(typed.type, typed.value)]).decode())
        nbytes += len(rows[-1])
        if nbytes > MAX_JSON_BYTES:
            raise UnsupportedError(
                f"the metadata need more than {MAX_JSON_BYTES} bytes as JSON",
                code="E_METADATA",
                hint="convert to a format with typed metadata, such as gguf",
            )
    return f"[{','.join(rows)}]"


def plain(kind: str, value: Any) -> Any:
    """A value of this type as JSON can hold it."""
    if kind.startswith("["):
        inner = kind[1:-1]
        return [plain(inner, item) for item in value] if inner.startswith("[") or inner in _FLOATS else list(value)
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
                try:
                    metadata[key] = read(kind, value)
                except ValueError:
                    message = f"the value of '{key}' is not of type '{kind}'"
                    raise MalformedError(message, code="E_METADATA", file=file) from None
            case _:
                raise MalformedError("a row of typed metadata is not [new key, type, value]", code="E_METADATA", file=file)
    return metadata


def read(kind: str, value: Any) -> Typed:
    """The inverse of `plain`, of JSON that a stranger wrote: ValueError for what is not of this type."""
    return Typed(kind, _reader(kind)(value))


@cache
def _reader(kind: str, depth: int = MAX_ARRAY_DEPTH) -> Callable[[Any], Any]:
    """The function that returns a value of this type as it is meant. It, or this, raises ValueError if there is none."""
    if kind.startswith("[") and kind.endswith("]") and depth:
        return partial(_array, _reader(kind[1:-1], depth - 1))
    if kind in _RANGES:
        return partial(_integer, *_RANGES[kind])
    if kind in _FLOATS:
        return partial(_float, inf if kind == "f64" else _LARGEST_F32)
    if kind in _PLAIN:
        return partial(_plain_value, _PLAIN[kind])
    raise ValueError(kind)


def _array(item: Callable[[Any], Any], values: Any) -> list[Any]:
    if type(values) is not list:
        raise ValueError
    return [item(value) for value in values]


def _integer(least: int, most: int, value: Any) -> int:
    if type(value) is int and least <= value <= most:
        return value
    raise ValueError


def _float(most: float, value: Any) -> float:
    if type(value) in (int, float) and abs(value) <= most:
        return float(value)
    if type(value) is str and len(value) == 16 and value.isalnum() and value.isascii():
        return unpack(">d", bytes.fromhex(value))[0]  # type: ignore[no-any-return]
    raise ValueError


def _plain_value(kind: type, value: Any) -> Any:
    if type(value) is kind:
        return value
    raise ValueError
