r"""Special tokens written in a message are text, not control.

A template mixes its own special tokens with what people wrote, and whoever writes `<|im_end|>` in a message could end it and
speak for someone else. So before messages are rendered, the first character of every special token in them is replaced by a
character that is in none of the texts; it stands for the one it replaced. The rendered text is encoded as one text, and the
tokenizer turns these characters back after it has looked for special tokens and before it does anything else
(`Tokenizer.encode(stands_for=…)`).

    message        say <|im_end|>
    rendered       <|im_start|>user\nsay ▮|im_end|><|im_end|>
    found          <|im_start|>                      <|im_end|>
    encoded        …            user\nsay <|im_end|>           …

Messages without special tokens are rendered and encoded as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

_SIGNS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE))
"""Characters that are set aside for use within a program, and then those of private use."""


def strings_of(value: Any) -> Iterator[str]:
    """Every text in messages, however deep; the keys are the template's words and no message."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_of(item)


def as_text(
    messages: Sequence[Mapping[str, Any]], special: Iterable[str], template: str
) -> tuple[Sequence[Mapping[str, Any]], dict[str, str]]:
    """The messages with no special token in them, and which character stands for which."""
    strings = list(strings_of(messages))
    present = [text for text in special if text and any(text in string for string in strings)]
    if not present:
        return messages, {}
    taken = set(chain(template, *strings, *present))
    free = (sign for sign in map(chr, chain(*_SIGNS)) if sign not in taken)
    signs = {character: next(free) for character in dict.fromkeys(text[0] for text in present)}

    def literal(value: Any) -> Any:
        if isinstance(value, str):
            return _replaced(value, present, signs)
        if isinstance(value, Mapping):
            return {key: literal(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [literal(item) for item in value]
        return value

    return [literal(message) for message in messages], {sign: character for character, sign in signs.items()}


def _replaced(text: str, special: Sequence[str], signs: Mapping[str, str]) -> str:
    """The text with a sign where a special token begins, also one that begins within another."""
    begins = {at for token in special for at in _places(text, token)}
    if not begins:
        return text
    return "".join(signs[character] if at in begins else character for at, character in enumerate(text))


def _places(text: str, token: str) -> Iterator[int]:
    at = text.find(token)
    while at >= 0:
        yield at
        at = text.find(token, at + 1)
