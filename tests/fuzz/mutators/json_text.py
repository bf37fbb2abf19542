"""Mutations of JSON that keep it JSON: of tokens in the text, so that keys can stand twice and numbers can be any length.

A value that is a text of JSON itself, as descriptions in safetensors files are, is mutated inside.
"""

from __future__ import annotations

import json
import random
import re

from fuzz.mutators import plain
from fuzz.mutators.values import TEXTS, near

__all__ = ["dumped", "is_json", "mutate"]

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null|[\[\]{},:]')
_OPEN, _CLOSE = b"[{", b"]}"
_LITERALS = (
    b"0", b"1", b"-1", b"-0", b"0.5", b"64.0", b"1e999", b"-1e-999", b"true", b"false", b"null", b'""', b"[]", b"{}", b"[0]",
    b"[4,4]", b"[2,0]", b"[1,1,1,1,1,1,1,1,1]", b"[4294967296,4294967296]", b'{"a":1}', b"NaN", b"9" * 30, b"9" * 400,
    b"18446744073709551615", b"9223372036854775808", b'"\\ud800"', b'"\\u0000"', b"[" * 70 + b"]" * 70,
)  # fmt: skip

Span = tuple[int, int]


def dumped(document: object) -> bytes:
    """Without spaces: a directory has only the room it has."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def is_json(raw: bytes) -> bool:
    return raw[:64].lstrip()[:1] in (b"{", b"[")


def _value_end(text: bytes, spans: list[Span], index: int) -> int:
    """The index behind the value that begins at a token."""
    depth = 0
    while index < len(spans):
        mark = text[spans[index][0]]
        depth += (mark in _OPEN) - (mark in _CLOSE)
        index += 1
        if depth <= 0:
            break
    return index


def _value_at(rng: random.Random, text: bytes, spans: list[Span]) -> int:
    """A token that begins a value or is a key."""
    at = rng.randrange(len(spans))
    return next((index for index in range(at, min(at + 8, len(spans))) if text[spans[index][0]] not in b",:]}"), at)


def _value(rng: random.Random, text: bytes, spans: list[Span]) -> bytes:
    at = _value_at(rng, text, spans)
    return text[spans[at][0] : spans[_value_end(text, spans, at) - 1][1]]


def _text(rng: random.Random, strings: list[bytes]) -> bytes:
    if strings and rng.randrange(2):
        return rng.choice(strings)
    return json.dumps(rng.choice(TEXTS), ensure_ascii=rng.randrange(2) == 0).encode()


def _inside(rng: random.Random, token: bytes) -> bytes | None:
    """A string token whose text is JSON, with that mutated."""
    try:
        inner = json.loads(token)
    except ValueError:
        return None
    if not isinstance(inner, str) or inner[:1] not in ("[", "{"):
        return None
    changed = mutate(rng, inner.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    return json.dumps(changed).encode()


def mutate(rng: random.Random, text: bytes, donor: bytes = b"") -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = _edited(rng, text, donor)
    return text


def _edited(rng: random.Random, text: bytes, donor: bytes) -> bytes:
    spans = [match.span() for match in _TOKEN.finditer(text)]
    if not spans:
        return plain.mutate(rng, text, donor)
    strings = [text[begin:end] for begin, end in spans if text[begin] == 0x22]

    def replaced(first: int, behind: int, new: bytes) -> bytes:
        return text[: spans[first][0]] + new + text[spans[behind - 1][1] :]

    at = _value_at(rng, text, spans)
    begin, end = spans[at]
    token = text[begin:end]
    is_key = at + 2 < len(spans) and text[spans[at + 1][0]] == 0x3A
    first = at + 2 if is_key else at
    member = at - 2 if at > 1 and text[spans[at - 1][0]] == 0x3A else at  # with its key, where it has one
    behind = _value_end(text, spans, first)
    match rng.randrange(12):
        case 0 | 1 | 2 if not is_key and (token[:1].isdigit() or token[:1] == b"-") and token.lstrip(b"-").isdigit():
            return replaced(at, at + 1, str(near(rng, int(token[:19]))).encode())
        case 3 if token[:1] == b'"' and (changed := _inside(rng, text[spans[first][0] : spans[first][1]])):
            return replaced(first, first + 1, changed)
        case 3 | 4 if token[:1] == b'"':
            return replaced(at, at + 1, _text(rng, strings))
        case 5:
            # With the comma behind it, or the one before.
            if behind < len(spans) and text[spans[behind][0]] == 0x2C:
                return replaced(member, behind + 1, b"")
            return replaced(member - 1 if member and text[spans[member - 1][0]] == 0x2C else member, behind, b"")
        case 6:
            whole = text[spans[member][0] : spans[behind - 1][1]]
            return replaced(member, behind, whole + b"," + whole)
        case 7:
            if donor and rng.randrange(3) == 0 and (found := [match.span() for match in _TOKEN.finditer(donor)]):
                return replaced(first, behind, _value(rng, donor, found))
            return replaced(first, behind, _value(rng, text, spans))
        case 8:
            value = text[spans[first][0] : spans[behind - 1][1]]
            depth = rng.choice((1, 1, 2, 65))
            opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
            return replaced(first, behind, opened * depth + value + closed * depth)
        case 9 if rng.randrange(3) == 0:
            return plain.mutate(rng, text, donor)
        case _:
            return replaced(first, behind, rng.choice(_LITERALS))
