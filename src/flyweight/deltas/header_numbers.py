"""Numbers that a header says of a tensor, read and checked; and the options that become such numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyweight.deltas.kind import require
from flyweight.foundation.errors import ArgumentError


def require_count(about: Mapping[str, Any], key: str, expected: int) -> None:
    """MalformedError unless the header has the count that the arrays and the shape come to."""
    given = about.get(key)
    require(type(given) is int and given == expected, f"{key} must be {expected}, not {given!r:.40}")


def require_share(about: Mapping[str, Any], key: str) -> None:
    """MalformedError for what is no number from 0 to 1. Nothing is rebuilt with it, so it may be absent."""
    given = about.get(key, 0)
    require(type(given) in (int, float) and 0 <= given <= 1, f"{key} must be a number from 0 to 1, not {given!r:.40}")


def share_option(name: str, value: object) -> float:
    """ArgumentError unless the value is a number from 0 to below 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
        raise ArgumentError(f"{name} must be a number from 0 to below 1, not {value!r:.40}")
    return float(value)


def refuse_options(strategy: str, options: Mapping[str, Any]) -> None:
    """ArgumentError for an option that a strategy does not have. `budget` is for those that can aim at an error; the others are
    given it too."""
    for name in options.keys() - {"budget"}:
        raise ArgumentError(f"strategy {strategy} has no option '{name:.40}'")
