"""JSON from untrusted files: duplicate keys, NaN, deep nesting and bad text are errors.

A document of a few bytes can stand for many objects: `[],` takes 3 bytes as text and 64 as a list. `tree_nbytes` counts the
characters that make objects and so bounds what a document takes before any of it is made.
"""

from __future__ import annotations

import gc
import json
import re
from math import isfinite
from typing import Any, NoReturn

from flyweight.foundation.cursor import Budget, Readable, utf8
from flyweight.foundation.errors import LimitError, MalformedError, UnsupportedError, printable
from flyweight.foundation.limits import MAX_JSON_BYTES, MAX_JSON_DEPTH, MAX_PARSE_BYTES

_TOO_DEEP = f"JSON nested deeper than {MAX_JSON_DEPTH}"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_PAIRED = re.compile(  # text in which each escaped surrogate is one of a pair
    r"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]))*+"
)

_AT_ONCE = 1 << 18
_INDENTATION = 10
_MOST_PER_BYTE = 64
"""No JSON takes more bytes of memory for one of text; so a short document need not be counted."""
_LIST, _OBJECT, _KEY, _NUMBER, _ITEM = 88, 72, 168, 32, 9
_ASCII_STRING, _WIDE_STRING = 64, 96
"""Bytes of a list with a few items, an empty object, a key while its object is made, a number, a place in a list, and of a
string beside its characters."""


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


def tree_nbytes(raw: bytes | memoryview, text: str) -> int:
    """At most so many bytes do a JSON text and what it describes take, while it is parsed and after.

    Characters inside strings are counted as if they were structure: that errs upwards, and no real document has many.
    """
    counts, indentation = _count(raw)
    strings, keys, lists, objects = counts['"'] // 2, counts[":"], counts["["], counts["{"]
    items = counts[","] + lists + objects
    numbers = max(items - (strings - keys) - lists - objects, 0)
    width = text.__sizeof__() // max(len(text), 1)  # of a character: one that is wide makes all of its string so
    if counts["\\"]:
        width = 5 if "\\u" in text else width + 1  # a string with escapes is joined from pieces
    string = _ASCII_STRING if width == 1 and text.isascii() else _WIDE_STRING
    return (
        text.__sizeof__()
        + ((len(text) - indentation) * width + strings * string)
        + (lists * _LIST + objects * _OBJECT + keys * _KEY)
        + (items * _ITEM + numbers * _NUMBER)
    )


def _count(raw: bytes | memoryview) -> tuple[dict[str, int], int]:
    """How often each character that makes objects occurs, and how many surely make none: lines' ends and the blanks after."""
    counts, indentation = dict.fromkeys('":[{,\\', 0), 0
    import numpy as np  # which declaring a format does not need

    codes = np.frombuffer(raw, np.uint8)
    for start in range(0, len(codes), _AT_ONCE):
        window = codes[start : start + _AT_ONCE]
        for character in counts:
            counts[character] += int(np.count_nonzero(window == ord(character)))
        blank, run = window == ord(" "), window == ord("\n")  # no string holds the end of a line
        for depth in range(1, _INDENTATION):
            indentation += int(np.count_nonzero(run))
            run = run[:-1] & blank[depth:]
    return counts, indentation


def load(source: Readable) -> Any:
    """`loads` of a whole file."""
    _check_size(source.size, source.name)
    return loads(source.read(0, source.size), file=source.name)


def _check_size(nbytes: int, file: str) -> None:
    if nbytes > MAX_JSON_BYTES:
        raise LimitError(f"{nbytes} bytes of JSON exceed the limit of {MAX_JSON_BYTES}", file=file)


def loads(raw: bytes | memoryview, *, file: str) -> Any:
    """Parse strictly. Raises MalformedError naming `file`."""
    _check_size(len(raw), file)
    text = utf8(raw, "the JSON text", file=file)
    if len(raw) > MAX_PARSE_BYTES // _MOST_PER_BYTE:
        Budget().spend(tree_nbytes(raw, text), f"{len(raw)} bytes of JSON", file=file)

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

    collects = gc.isenabled()
    gc.disable()  # a tree holds no cycle, and looking for one while it grows takes longer than making it
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
    finally:
        if collects:
            gc.enable()
    # Few brackets cannot nest deeply, and most files have no escapes: both checks are rarely made.
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH and _is_deep(value):
        fail(_TOO_DEEP, "E_JSON_DEPTH")
    if _SURROGATE_ESCAPE.search(text) and not _PAIRED.fullmatch(text):
        fail("a string contains a lone surrogate", "E_UTF8")
    return value


def dumps(value: Any, *, indent: int | None = None) -> bytes:
    """The one way we write JSON: UTF-8, key order kept, no spaces unless indented.

    UnsupportedError if a name is in it that is not UTF-8: the operating system has such file names, JSON does not.
    """
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        name = text[text.rfind('"', 0, error.start) + 1 : text.find('"', error.start)]
        raise UnsupportedError(
            f"the file name '{printable(name)}' is not UTF-8 and cannot be recorded", code="E_FILE_NAME", hint="rename it"
        ) from None
