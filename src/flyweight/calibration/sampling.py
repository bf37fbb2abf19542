"""Which windows of the texts a model is run over.

Every text is cut into windows of one length from its first token on, an incomplete last one dropped; no window has tokens of
two texts. Of all windows as many as are wanted are taken, evenly spaced, so that a long text gives more than a short one and
every part of it has its share. They are then put in an order in which the first few are from all texts. Of texts that are much
longer than what is wanted, only evenly spaced pieces are cut into windows: nobody tokenizes a library for some pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from flyweight.evaluate.windows import read_text
from flyweight.foundation.errors import UnsupportedError
from flyweight.runtime import Model

Array = np.ndarray[Any, Any]

LEAST_WINDOWS = 4
_ENOUGH = 32
"""Characters for each token that is wanted, several times as many as tokens have."""


class Text(NamedTuple):
    name: str
    content: str

    @property
    def digest(self) -> str:
        return blake3(self.content.encode()).hexdigest()


def read_texts(paths: Sequence[Path | str]) -> list[Text]:
    return [Text(Path(path).name, read_text(Path(path))) for path in paths]


def sample_windows(model: Model, texts: Sequence[Text], wanted: int, length: int, *, bos: bool = False) -> Array:
    """int64 (windows, length), at most `wanted` of them."""
    body = length - 1 if bos else length
    pieces = _pieces([text.content for text in texts], wanted, _ENOUGH * length)
    encoded = [np.asarray(model.tokenizer.encode(piece, special=False), np.int64) for piece in pieces]
    cut = [ids[: len(ids) // body * body].reshape(-1, body) for ids in encoded]
    there = np.concatenate([*cut, np.empty((0, body), np.int64)])
    if len(there) < LEAST_WINDOWS:
        found = sum(map(len, encoded))
        raise UnsupportedError(
            f"the texts have {found} tokens, which are {len(there)} windows of {body}; at least {LEAST_WINDOWS} are needed",
            code="E_TEXT",
            hint=f"give longer texts, of {24 * body} tokens or more, or a shorter --window",
        )
    count = min(wanted, len(there))
    chosen = there[np.arange(count) * len(there) // count]
    if not bos:
        return chosen
    first = model.tokenizer.bos
    if first is None:
        raise UnsupportedError("the model has no BOS token to begin windows with", code="E_TEXT", hint="leave out --bos")
    return np.concatenate([np.full((count, 1), first, np.int64), chosen], axis=1)


def _pieces(texts: Sequence[str], wanted: int, size: int) -> list[str]:
    """The texts, or evenly spaced pieces of this size of them where there is more than enough; a piece ends with a line."""
    if sum(map(len, texts)) <= wanted * size:
        return list(texts)
    found: list[tuple[str, int, int]] = []
    for text in texts:
        start = 0
        while start < len(text):
            line = text.find("\n", start + size, start + 2 * size) + 1
            stop = line or start + size
            found.append((text, start, stop))
            start = stop
    count = min(len(found), wanted)
    chosen = (found[index * len(found) // count] for index in range(count))
    return [text[start:stop] for text, start, stop in chosen]


def spread(windows: Array, runs: int) -> Array:
    """The same windows in an order in which each of so many runs of them is from everywhere."""
    return np.concatenate([windows[start::runs] for start in range(runs)])
