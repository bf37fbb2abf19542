"""The logits of a model for every token of a window, computed a few tokens at a time.

A `Predictor` turns a window into blocks of logits, f32 (BLOCK or fewer, vocabulary), one row for every token but the last. 128
rows of 49,152 are 25 MB: a window of 1,024 whole would be 200, and two models of them, with their exponentials, a gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from flyweight.runtime import Model
from flyweight.runtime.decoder import Decoder

Array = np.ndarray[Any, Any]
Predictor: TypeAlias = Callable[[Array], Iterator[Array]]

BLOCK = 128


def of_decoder(decoder: Decoder, kv: str = "f16") -> Predictor:
    """A decoder with one cache, emptied for every window."""
    cache = decoder.cache(kv)

    def predict(window: Array) -> Iterator[Array]:
        cache.truncate(0)
        for start in range(0, len(window) - 1, BLOCK):
            yield decoder.forward(window[start : min(start + BLOCK, len(window) - 1)], cache, every=True)

    return predict


def predictor(model: Model) -> Predictor:
    return of_decoder(model.decoder, model.kv)
