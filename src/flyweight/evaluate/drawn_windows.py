"""Text that a model says itself, as windows of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from flyweight.runtime import Model, Sampler
from flyweight.runtime.batch import Batch

Array = np.ndarray[Any, Any]


def drawn_windows(model: Model, count: int, length: int) -> Array:
    """int64 (count, length): texts a model says when it is asked nothing, each from its first token on, all at once."""
    draws = [Sampler(temperature=1.0, seed=number) for number in range(count)]
    batch = Batch([model.cache() for _ in draws])
    windows = np.empty((count, length), np.int64)
    windows[:, 0] = _first_token(model)
    for at in range(1, length):
        logits = model.decoder.forward(windows[:, at - 1], batch, every=True)
        windows[:, at] = [draw(row) for draw, row in zip(draws, logits, strict=True)]
    return windows


def _first_token(model: Model) -> int:
    """BOS, where the settings name one: a window begins with it; else token 0."""
    settings, metadata = model.decoder.config.settings, model.checkpoint.manifest
    first = metadata.value("tokenizer.ggml.bos_token_id", settings.get("bos_token_id"))
    return first if type(first) is int and 0 <= first < model.decoder.vocabulary else 0
