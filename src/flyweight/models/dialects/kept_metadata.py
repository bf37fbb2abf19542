"""GGUF metadata without a counterpart in config.json, stored there as `{key: [type, value]}`.

Names, licences, tags, sampling hints: nothing of it changes the model, all of it belongs to the file, and the
way back restores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from flyweight.foundation.errors import MalformedError
from flyweight.foundation.limits import MAX_ARRAY_DEPTH, MAX_ARRAY_ITEMS, MAX_METADATA_KEYS
from flyweight.foundation.manifest import Numbers, Typed

__all__ = ["from_json", "to_json"]

_INTEGERS = {
    f"{sign}{bits}": (0 if sign == "u" else -(2 ** (bits - 1)), 2 ** (bits if sign == "u" else bits - 1) - 1)
    for sign in "ui"
    for bits in (8, 16, 32, 64)
}
_MOST_NUMBERS = 2**20
"""Four times the largest vocabulary."""


def _fits(type_: str, value: Any, depth: int = 0) -> bool:
    """Whether a plain value is one of its declared type, finite and bounded."""
    if type_.startswith("[") and type_.endswith("]"):
        fine = isinstance(value, list | tuple) and depth < MAX_ARRAY_DEPTH and len(value) <= MAX_ARRAY_ITEMS
        return fine and all(_fits(type_[1:-1], item, depth + 1) for item in value)
    if type_ in _INTEGERS:
        low, high = _INTEGERS[type_]
        return type(value) is int and low <= value <= high
    if type_ in ("f32", "f64"):
        largest = 3.4028234663852886e38 if type_ == "f32" else 1.7976931348623157e308
        return type(value) in (int, float) and isfinite(value) and abs(value) <= largest
    return type(value) is {"bool": bool, "str": str}.get(type_)


def to_json(metadata: Mapping[str, Typed]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Metadata ready for config.json, and a note for what JSON cannot hold."""
    kept: dict[str, Any] = {}
    notes: list[str] = []
    for key, typed in metadata.items():
        if isinstance(typed.value, Numbers) and len(typed.value) > _MOST_NUMBERS:
            notes.append(f"metadata '{key}' is not stored: {len(typed.value)} numbers are too many for config.json")
        elif _fits(typed.type, value := typed.plain):
            kept[key] = [typed.type, value]
        else:
            notes.append(f"metadata '{key}' is not stored: JSON cannot express its value")
    return kept, tuple(notes)


def from_json(table: object, *, file: str) -> dict[str, Typed]:
    """The metadata that config.json kept, checked."""
    if table is None:
        return {}
    if not isinstance(table, Mapping) or len(table) > MAX_METADATA_KEYS:
        raise MalformedError("'gguf_metadata' must be an object of moderate size", code="E_CONFIG", file=file)
    metadata: dict[str, Typed] = {}
    for key, pair in table.items():
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and _fits(pair[0], pair[1])):
            raise MalformedError(f"'gguf_metadata' has a bad entry '{key}'", code="E_CONFIG", file=file)
        if not key or len(key) > 1024 or "\0" in key:
            raise MalformedError("'gguf_metadata' has a bad key", code="E_CONFIG", file=file)
        value = float(pair[1]) if pair[0] in ("f32", "f64") else pair[1]
        metadata[key] = Typed(pair[0], value)
    return metadata
