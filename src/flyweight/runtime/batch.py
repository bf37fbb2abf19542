"""Several texts at once, so that the weights are read once for all of them.

    batch = Batch([decoder.cache() for _ in texts])                                a token of each at a time
    logits = decoder.forward([text[-1] for text in texts], batch, every=True)      f32 (texts, vocabulary)

    apart = Windows(decoder.config, 128)                                           texts of 128 tokens, whole
    for layer in decoder.layers: layer(x, apart, buffers)                          x: f32 (texts · 128, hidden)

To a decoder they are one cache: products take the tokens as the rows of one block, attention looks at each text alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from flyweight.models import Config
from flyweight.runtime.kv import KeyValues

Array = np.ndarray[Any, Any]


class Batch(KeyValues):
    """Caches of the same model, all of the same length."""

    def __init__(self, caches: Sequence[KeyValues]) -> None:
        if len({cache.length for cache in caches}) != 1:
            raise ValueError("a batch is one or more caches of the same length")
        self.caches, self.length = tuple(caches), caches[0].length

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with ExitStack() as held:
            for cache in self.caches:
                held.enter_context(cache.in_use())
            yield

    def __deepcopy__(self, memo: dict[int, Any]) -> Batch:
        return Batch([deepcopy(cache, memo) for cache in self.caches])

    def attend(self, layer: int, qkv: Array, heads: int, cos: Array, sin: Array, out: Array, **settings: Any) -> None:
        self._one_each(len(qkv))
        for at, cache in enumerate(self.caches):
            cache.attend(layer, qkv[at : at + 1], heads, cos, sin, out[at : at + 1], **settings)

    def reach(self, count: int) -> int:
        return self.length + 1

    def advance(self, count: int) -> None:
        self._one_each(count)
        for cache in self.caches:
            cache.advance(1)
        self.length += 1

    def truncate(self, length: int) -> None:
        for cache in self.caches:
            cache.truncate(length)
        self.length = length

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    def _one_each(self, count: int) -> None:
        if count != len(self.caches):
            raise ValueError(f"a batch of {len(self.caches)} takes {len(self.caches)} tokens at a time, not {count}")


class Windows(KeyValues):
    """Texts of one length from their first token on, one after the other, in a cache that holds one layer of one of them.

    A layer forgets them at once: this is for whoever takes all texts through a layer before the next (`calibration`).
    """

    def __init__(self, config: Config, length: int) -> None:
        dims = config.dims
        super().__init__(1, dims.kv_heads, dims.head, length, "f32")
        self._sight = config.windows

    def reach(self, count: int) -> int:
        return self.context

    def attend(self, layer: int, qkv: Array, heads: int, cos: Array, sin: Array, out: Array, **settings: Any) -> None:
        if len(qkv) % self.context:
            raise ValueError(f"{len(qkv)} tokens are no whole texts of {self.context}")
        self.windows = (self._sight[layer],)
        for at in range(0, len(qkv), self.context):
            text = slice(at, at + self.context)
            super().attend(0, qkv[text], heads, cos, sin, out[text], **settings)
