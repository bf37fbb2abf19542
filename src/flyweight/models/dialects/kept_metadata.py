"""GGUF metadata without a counterpart in config.json, stored there as `{key: [type, value]}`.

Names, licences, tags, sampling hints: nothing of it changes the model, all of it belongs to the file, and the
way back restores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyweight.foundation import typed_json
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.limits import MAX_METADATA_KEYS
from flyweight.foundation.manifest import Numbers, Typed

_MOST_NUMBERS = 2**20
"""Four times the largest vocabulary."""


def to_json(metadata: Mapping[str, Typed]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Metadata ready for config.json, and notes for what is too long for it, or not of its type."""
    kept: dict[str, Any] = {}
    notes: list[str] = []
    for key, typed in metadata.items():
        if isinstance(typed.value, Numbers) and len(typed.value) > _MOST_NUMBERS:
            notes.append(f"metadata '{key}' is not stored: {len(typed.value)} numbers are too many for config.json")
            continue
        try:
            value = typed_json.plain(typed.type, typed.plain)
            typed_json.read(typed.type, value)
            kept[key] = [typed.type, value]
        except (TypeError, ValueError, AttributeError):
            notes.append(f"metadata '{key}' is not stored: its value is not of type '{typed.type}'")
    return kept, tuple(notes)


def from_json(table: object, *, file: str) -> dict[str, Typed]:
    """The metadata that config.json kept, checked."""
    if table is None:
        return {}
    if not isinstance(table, Mapping) or len(table) > MAX_METADATA_KEYS:
        raise MalformedError("'gguf_metadata' must be an object of moderate size", code="E_CONFIG", file=file)
    metadata: dict[str, Typed] = {}
    for key, pair in table.items():
        if not key or len(key) > 1024 or "\0" in key:
            raise MalformedError("'gguf_metadata' has a bad key", code="E_CONFIG", file=file)
        try:
            kind, value = pair
            metadata[key] = typed_json.read(kind, value)
        except (TypeError, ValueError, AttributeError):
            raise MalformedError(f"'gguf_metadata' has a bad entry '{key}'", code="E_CONFIG", file=file) from None
    return metadata
