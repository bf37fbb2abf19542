r"""Which regular expressions of tokenizer.json are supported: those that surely run in linear time.

The library's engine backtracks, so a short pattern can take hours for a short text. A pattern is accepted when its form
shows that each attempt to match either fails at once or takes the characters it looked at. It is a list of alternatives,
and each is one of

    B… U O…            bounded items, then at most one without an upper bound, then only items that may be absent
    P X* Y+ S          if  P X+ Y* S  is the next alternative: what the first looks at in vain, the second takes
    \s+(?!\S)          takes all of a run of white space but its last character: in vain it looks at one
    \s*[\r\n]+         if \s+, or one of these two before \s+, is the next alternative: white space is taken there
    \s+$               alone: it looks at every run of white space once for each of its characters (`squares`)

where an item is a character, an escape, a class, or a group of bounded alternatives, with a greedy or possessive quantifier.
The patterns of GPT-2, Llama 3, Qwen, Mistral, Gemma, Phi, DeepSeek, Falcon and BLOOM have this form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple, NoReturn

from flyweight.foundation.errors import LimitError, UnsupportedError

_MAX_PATTERN = 4096
_MAX_DEPTH = 4
_MAX_CHOICES = 64  # ways to match the bounded part of an alternative
_MAX_EFFORT = 512  # characters that all alternatives together look at before the first unbounded item
_UNBOUNDED = 1 << 30

_ESCAPE = re.compile(r"\\(?:[rntvfsSdDwWhH]|[pP]\{\^?\w{1,64}\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[^\w\s])")
_GROUP = re.compile(r"\((?:\?i?:)?(?!\?)")
_LOOK = re.compile(r"\(\?[=!]")
_QUANTIFIER = re.compile(r"(?:([?*+])|\{(\d{1,3})(?:(,)(\d{0,3}))?\})")
_OPERATORS = frozenset("()[]{}*+?|^$")

_SPACES = r"\s+"
_ALL_SPACES_BUT_ONE = r"\s+(?!\S)"
_SPACE_IDIOMS = (_ALL_SPACES_BUT_ONE, r"\s*[\r\n]+", r"\s*[\r\n]")
_SPACES_AT_THE_END = r"\s+$"


class Pattern(NamedTuple):
    least: int
    """The fewest characters that it matches."""
    squares: bool = False
    """Whether a run of white space takes the square of its length."""


class _Item(NamedTuple):
    text: str
    least: int
    most: int
    choices: int = 1
    """Ways to match it once."""
    width: int = 1
    """The fewest characters it takes once; 0 looks at them without taking any."""
    effort: int = 1
    """The most characters it looks at once."""

    @property
    def unbounded(self) -> bool:
        return self.most == _UNBOUNDED


def read_pattern(text: str) -> Pattern:
    """What is known of a pattern. UnsupportedError when its form does not bound its time."""
    if len(text) > _MAX_PATTERN:
        raise LimitError(f"a pattern has {len(text)} characters; the limit is {_MAX_PATTERN}", code="E_TOKENIZER")
    if text == _SPACES_AT_THE_END:
        return Pattern(1, squares=True)
    reader = _Reader(text)
    alternatives = reader.alternatives(0)
    if reader.at != len(text):
        reader.refuse()
    texts = ["".join(item.text for item in items).replace("\r", r"\r").replace("\n", r"\n") for items in alternatives]
    for index, items in enumerate(alternatives):
        following = index + 1
        if texts[index] == _ALL_SPACES_BUT_ONE and following == len(texts):
            continue
        if texts[index] in _SPACE_IDIOMS:
            if following == len(texts) or texts[following] not in (*_SPACE_IDIOMS, _SPACES):
                reader.refuse()
        elif not _is_direct(items) and not (following < len(texts) and _is_taken_by(items, alternatives[following])):
            reader.refuse()
    least = min(map(_width, alternatives))
    if not least or sum(map(_effort, alternatives)) > _MAX_EFFORT:
        reader.refuse()
    return Pattern(least)


def _effort(items: Sequence[_Item]) -> int:
    return sum(item.effort * (max(item.least, 1) if item.unbounded else item.most) for item in items)


def _width(items: Sequence[_Item]) -> int:
    return sum(item.width * item.least for item in items)


def _choices(items: Sequence[_Item]) -> int:
    return prod(item.choices**item.most * (item.most - item.least + 1) for item in items)


def _first_unbounded(items: Sequence[_Item]) -> int:
    return next((index for index, item in enumerate(items) if item.unbounded), len(items))


def _is_direct(items: Sequence[_Item]) -> bool:
    """Bounded items, at most one without a bound, then only what may be absent."""
    first = _first_unbounded(items)
    rest = items[first:]
    return (
        _choices(items[:first]) <= _MAX_CHOICES
        and all(item.choices == 1 for item in rest if item.unbounded)
        and all(item.least == 0 and item.width for item in rest[1:])
    )


def _is_taken_by(items: Sequence[_Item], next_items: Sequence[_Item]) -> bool:
    """Whether these are `P X* Y+ S` and `P X+ Y* S`."""
    first = _first_unbounded(items)
    if len(items) < first + 2 or len(items) != len(next_items):
        return False
    many, some = items[first], items[first + 1]
    swapped = [*items[:first], _again(many, 1), _again(some, 0), *items[first + 2 :]]
    return (many.least, some.least) == (0, 1) and some.unbounded and swapped == list(next_items) and _is_direct(next_items)


def _again(item: _Item, least: int) -> _Item:
    """The same with another quantifier, * or +."""
    return item._replace(text=item.text[:-1] + "*+"[least], least=least)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"the tokenizer splits text by the pattern '{self.text}', which may take very long",
            code="E_TOKENIZER",
            hint="only patterns that surely run in linear time are supported; see docs/formats/tokenizers.md",
        )

    def alternatives(self, depth: int) -> list[list[_Item]]:
        found: list[list[_Item]] = [[]]
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "|":
                self.at += 1
                found.append([])
            else:
                found[-1].append(self._item(depth))
        return found

    def _item(self, depth: int) -> _Item:
        begin = self.at
        choices, width, effort = self._once(depth)
        least, most = self._quantifier() if width else (1, 1)
        return _Item(self.text[begin : self.at], least, most, choices, width, effort)

    def _once(self, depth: int) -> tuple[int, int, int]:
        """Read one item without its quantifier: its choices, width and effort."""
        character = self.text[self.at]
        if character == "(":
            return self._group(depth)
        if character == "[":
            self._class()
        elif character == "\\":
            escape = _ESCAPE.match(self.text, self.at)
            self.at = escape.end() if escape else self.refuse()
        elif character in _OPERATORS:
            self.refuse()
        else:
            self.at += 1
        return 1, 1, 1

    def _group(self, depth: int) -> tuple[int, int, int]:
        look = _LOOK.match(self.text, self.at)
        begin = look or _GROUP.match(self.text, self.at)
        if begin is None or depth == _MAX_DEPTH:
            self.refuse()
        self.at = begin.end()
        inner = self.alternatives(depth + 1)
        if self.text[self.at : self.at + 1] != ")" or any(item.unbounded for items in inner for item in items):
            self.refuse()
        self.at += 1
        width = min(map(_width, inner))
        if not look and not width:
            self.refuse()
        return sum(map(_choices, inner)), 0 if look else width, sum(map(_effort, inner))

    def _class(self) -> None:
        depth = 0
        while self.at < len(self.text):
            character = self.text[self.at]
            self.at += 2 if character == "\\" else 1
            depth += (character == "[") - (character == "]")
            if not depth:
                return
            if depth > _MAX_DEPTH:
                break
        self.refuse()

    def _quantifier(self) -> tuple[int, int]:
        found = _QUANTIFIER.match(self.text, self.at)
        if found is None:
            return 1, 1
        self.at = found.end()
        sign, least, comma, most = found.groups()
        if sign and self.text[self.at : self.at + 1] == "+":  # possessive: it backtracks less
            self.at += 1
        if self.text[self.at : self.at + 1] in ("?", "*", "+", "{"):  # lazy, or a quantifier of a quantifier
            self.refuse()
        if sign:
            return (1 if sign == "+" else 0), (1 if sign == "?" else _UNBOUNDED)
        return int(least), int(most) if most else _UNBOUNDED if comma else int(least)
