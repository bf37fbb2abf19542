"""The next token from logits.

Filters in the order llama.cpp and transformers share, each on what the last one left:

    penalty      logits of tokens seen before: l > 0 → l / r, otherwise l · r
    top-k        the k largest logits                       (0: all)
    top-p        the fewest largest whose probabilities reach p   (1: all)
    min-p        probabilities of at least m times the largest    (0: all)
    temperature  the rest divided by T, then one draw

Probabilities before the temperature are those of T = 1. Ties are broken by the lower id everywhere, also greedily.

The draw is reproducible: number i of a sampler is the i-th 64-bit word of Philox-4×64-10 (Salmon et al., 2011) with the seed
as key, its upper 53 bits over 2^53; exponentials are taken in f64 and summed in the order of the ids, one after
the other. Only `exp` itself can differ between machines, by a last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from flyweight.foundation.errors import MalformedError

Logits = np.ndarray[Any, np.dtype[np.float32]]
_Weights = np.ndarray[Any, np.dtype[np.float64]]
_Ids = np.ndarray[Any, np.dtype[np.int64]]

_FIRST = 256  # candidates looked at first: a model that is not confused has its probability in these


class Sampler:
    """Chooses tokens. Each call that draws consumes one random number."""

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not (isfinite(temperature) and temperature >= 0):
            raise ValueError("temperature must be 0 or more")
        if top_k < 0:
            raise ValueError("top_k must be 0 or more")
        if not 0 < top_p <= 1:
            raise ValueError("top_p must be above 0 and at most 1")
        if not 0 <= min_p <= 1:
            raise ValueError("min_p must be from 0 to 1")
        if not (isfinite(repetition_penalty) and repetition_penalty > 0):
            raise ValueError("repetition_penalty must be above 0")
        if not 0 <= seed < 2**64:
            raise ValueError("seed must be an unsigned 64-bit integer")
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self.repetition_penalty = repetition_penalty
        self.seed = seed

    @cached_property
    def _words(self) -> np.random.Philox:
        """Made for the first draw: whoever takes the likeliest token need not wait for NumPy's generators to load."""
        return np.random.Philox(key=self.seed)

    def __call__(self, logits: Logits, history: Sequence[int] = ()) -> int:
        """The next token's id; `history` are the tokens the penalty is for."""
        if logits.ndim != 1 or logits.dtype != np.float32 or not len(logits):
            raise ValueError("logits must be one row of f32")
        if self.repetition_penalty != 1.0 and len(history):
            logits = self._penalized(logits, history)
        best = int(logits.argmax())  # the first of equals; a NaN before anything else
        peak = float(logits[best])
        if not isfinite(peak):
            raise MalformedError(
                f"the logit of token {best} is {peak}",
                code="E_LOGITS",
                hint="the weights are damaged or overflow; run `flyweight verify`",
            )
        if self.temperature == 0.0:
            return best
        ids = self._allowed(logits, peak)
        return int(ids[self._draw(logits[ids], peak)])

    def _penalized(self, logits: Logits, history: Sequence[int]) -> Logits:
        seen = np.unique(np.asarray(history, np.int64))
        if seen[0] < 0 or seen[-1] >= len(logits):
            raise ValueError("the history has a token beyond the logits")
        penalized = logits.copy()
        rate, old = np.float32(self.repetition_penalty), logits[seen]
        penalized[seen] = np.where(old > 0, old / rate, old * rate)
        return penalized

    def _allowed(self, logits: Logits, peak: float) -> _Ids:
        """The ids that may be drawn, ascending."""
        ids = np.sort(_largest(logits, self.top_k)) if self.top_k else np.arange(len(logits))
        if self.top_p == 1.0 and self.min_p == 0.0:
            return ids
        scores = logits[ids]
        weights = np.exp(scores.astype(np.float64) - peak)
        if self.top_p < 1.0:
            kept = self._nucleus(scores, weights)
            ids, weights = ids[kept], weights[kept]
        return ids[weights >= self.min_p]  # the largest weight is 1: it always stays

    def _nucleus(self, scores: Logits, weights: _Weights) -> _Ids:
        """Where the fewest largest weights are that make up top_p of all, ascending."""
        wanted = self.top_p * float(np.cumsum(weights)[-1])
        count = _FIRST
        while True:
            best = _largest(scores, count)
            sums = np.cumsum(weights[best])
            if count >= len(scores) or sums[-1] >= wanted:
                return np.sort(best[: int(np.searchsorted(sums, wanted)) + 1])
            count *= 8

    def _draw(self, scores: Logits, peak: float) -> int:
        sums = np.cumsum(np.exp((scores.astype(np.float64) - peak) / self.temperature))
        uniform = (int(self._words.random_raw()) >> 11) / 2.0**53
        return min(int(np.searchsorted(sums, uniform * float(sums[-1]), side="right")), len(scores) - 1)


def _largest(logits: Logits, count: int) -> _Ids:
    """The ids of the `count` largest, best first, the lower id first of equals."""
    if count >= len(logits):
        ids = np.arange(len(logits))
    else:
        # A partition leaves open which of equals it takes: take the threshold from it, and the ids in their order.
        threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
        above = np.flatnonzero(logits > threshold)
        equal = np.flatnonzero(logits == threshold)[: count - len(above)]
        ids = np.concatenate([above, equal])
    return ids[np.lexsort((ids, -logits[ids]))]
