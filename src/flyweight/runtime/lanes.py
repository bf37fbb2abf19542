"""Several texts at once, a token of each at a time, so that the weights are read once for all of them.

    lanes = Lanes([decoder.cache() for _ in texts])
    logits = decoder.forward([text[-1] for text in texts], lanes, every=True)      f32 (texts, vocabulary)

To a decoder they are one cache: products take the tokens as the rows of one block, attention looks at each in its own cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from flyweight.runtime.kv import KeyValues

__all__ = ["Lanes"]

Array = np.ndarray[Any, Any]


class Lanes(KeyValues):
    """Caches of the same model, all of the same length."""

    def __init__(self, lanes: Sequence[KeyValues]) -> None:
        if len({lane.length for lane in lanes}) != 1:
            raise ValueError("lanes are one or more caches of the same length")
        self.lanes, self.length = tuple(lanes), lanes[0].length

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with ExitStack() as held:
            for lane in self.lanes:
                held.enter_context(lane.in_use())
            yield

    def __deepcopy__(self, memo: dict[int, Any]) -> Lanes:
        return Lanes([deepcopy(lane, memo) for lane in self.lanes])

    def attend(self, layer: int, qkv: Array, heads: int, cos: Array, sin: Array, out: Array, **settings: Any) -> None:
        self._one_each(len(qkv))
        for at, lane in enumerate(self.lanes):
            lane.attend(layer, qkv[at : at + 1], heads, cos, sin, out[at : at + 1], **settings)

    def advance(self, count: int) -> None:
        self._one_each(count)
        for lane in self.lanes:
            lane.advance(1)
        self.length += 1

    def truncate(self, length: int) -> None:
        for lane in self.lanes:
            lane.truncate(length)
        self.length = length

    @property
    def nbytes(self) -> int:
        return sum(lane.nbytes for lane in self.lanes)

    def _one_each(self, count: int) -> None:
        if count != len(self.lanes):
            raise ValueError(f"{len(self.lanes)} lanes take {len(self.lanes)} tokens at a time, not {count}")
