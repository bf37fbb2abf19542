"""JSON from untrusted files: duplicate keys, NaN, deep nesting and bad text are errors."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, NoReturn

from flyweight.cursor import utf8
from flyweight.errors import LimitError, MalformedError
from flyweight.limits import MAX_JSON_BYTES, MAX_JSON_DEPTH

__all__ = ["dumps", "loads"]

_TOO_DEEP = f"JSON nested deeper than {MAX_JSON_DEPTH}"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def _is_deep(value: Any) -> bool:
    """Whether objects and lists nest beyond the limit. Level by level: no recursion, each container seen once."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if type(outer) is dict else outer if type(outer) is list else ())
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return True


def loads(raw: bytes | memoryview, *, file: str) -> Any:
    """Parse strictly. Raises MalformedError naming `file`."""
    if len(raw) > MAX_JSON_BYTES:
        raise LimitError(f"{len(raw)} bytes of JSON exceed the limit of {MAX_JSON_BYTES}", file=file)
    text = utf8(raw, "the JSON text", file=file)

    def fail(message: str, code: str = "E_JSON") -> NoReturn:
        raise MalformedError(message, code=code, file=file)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    fail(f"duplicate key '{key}'", "E_JSON_DUPLICATE")
                seen.add(key)
        return made

    def finite(digits: str) -> float:
        number = float(digits)
        return number if isfinite(number) else fail(f"{digits} is not a finite number")

    def integer(digits: str) -> int | float:
        return -0.0 if digits == "-0" else int(digits)  # minus zero is a number, but not an integer

    try:
        value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_float=finite,
            parse_int=integer if "-0" in text else int,
            parse_constant=lambda constant: fail(f"{constant} is not JSON"),
        )
    except json.JSONDecodeError as error:
        fail(f"not JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        fail(_TOO_DEEP, "E_JSON_DEPTH")
    except ValueError as error:
        fail(f"not JSON: {error}")
    # Few brackets cannot nest deeply, and most files have no escapes: both checks are rarely made.
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH and _is_deep(value):
        fail(_TOO_DEEP, "E_JSON_DEPTH")
    if _SURROGATE_ESCAPE.search(text) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        fail("a string contains a lone surrogate", "E_UTF8")
    return value


def dumps(value: Any, *, indent: int | None = None) -> bytes:
    """The one way we write JSON: UTF-8, key order kept, no spaces unless indented."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=False).encode()
