"""Splitting a text into windows of one length, without overlap and without BOS; an incomplete last window is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.foundation.errors import LimitError, MalformedError, UnsupportedError
from flyweight.runtime.text.tokenizer import MAX_TEXT, Tokenizer

Array = np.ndarray[Any, Any]


_PLAIN = "give plain text in UTF-8"


def read_text(path: Path) -> str:
    """A UTF-8 text file that says something, with line ends as they are in memory."""
    most = 4 * MAX_TEXT  # bytes of the longest text that is encoded
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise LimitError(f"the text has more than {most} bytes", code="E_TEXT", file=path.name, hint="give a shorter text")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedError("the text is not UTF-8", code="E_TEXT", file=path.name, offset=error.start, hint=_PLAIN) from None
    if (at := raw.find(0)) >= 0:
        raise MalformedError(
            "the text has a NUL byte, as binary files have", code="E_TEXT", file=path.name, offset=at, hint=_PLAIN
        )
    if not text.strip():
        raise UnsupportedError("the text is empty, or nothing but white space", code="E_TEXT", file=path.name, hint=_PLAIN)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def windows_of(tokens: Sequence[int] | Array, length: int, limit: int | None = None) -> Array:
    """int64 (windows, length), of the first `limit` tokens."""
    if length < 2:
        raise ValueError("a window must have at least two tokens")
    ids = np.asarray(tokens[:limit], np.int64)
    count = len(ids) // length
    if not count:
        raise UnsupportedError(
            f"the text has {len(ids)} tokens, fewer than one window of {length}",
            code="E_TEXT",
            hint="give a longer text, or a shorter --context",
        )
    return ids[: count * length].reshape(count, length)


def common_tokens(text: str, model: Tokenizer, reference: Tokenizer) -> list[int]:
    """The ids of a text if both tokenizers agree about them: only then do two distributions speak of the same thing."""
    ids, theirs = model.encode(text, special=False), reference.encode(text, special=False)
    if ids == theirs:
        return ids
    at = next((i for i, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b), min(len(ids), len(theirs)))
    raise UnsupportedError(
        f"the tokenizers of the two models differ from token {at} of the text on",
        code="E_VOCABULARY",
        hint="compare models that share a tokenizer",
    )
