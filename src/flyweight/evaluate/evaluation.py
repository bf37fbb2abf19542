"""Evaluating a model on a text, alone or against a reference: window by window, keeping four numbers per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyweight.evaluate import statistics
from flyweight.evaluate.predict import BLOCK, Predictor
from flyweight.evaluate.scores import score
from flyweight.evaluate.statistics import Estimate
from flyweight.foundation.errors import UnsupportedError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of every predicted token, f64 (windows, tokens); those beside a reference are None without one."""

    surprise: Array
    reference_surprise: Array | None = None
    divergence: Array | None = None
    same_top: Array | None = None

    def figures(self) -> dict[str, Estimate]:
        found = {"perplexity": statistics.perplexity(self.surprise)}
        if self.reference_surprise is not None and self.divergence is not None and self.same_top is not None:
            found |= {
                "reference_perplexity": statistics.perplexity(self.reference_surprise),
                "perplexity_change": statistics.perplexity_change(self.surprise, self.reference_surprise),
                "kl_mean": statistics.mean(self.divergence),
                "kl_median": statistics.quantile(self.divergence, 0.5),
                "kl_99_9": statistics.quantile(self.divergence, 0.999),
                "same_top": statistics.share(self.same_top),
            }
        return found

    def as_json(self) -> dict[str, Any]:
        windows, predicted = self.surprise.shape
        return {
            "windows": windows,
            "context": predicted + 1,
            "predicted_tokens": windows * predicted,
            "error_unit": statistics.unit_of(self.surprise),
            **{name: estimate._asdict() for name, estimate in self.figures().items()},
        }


def evaluate(
    windows: Array,
    model: Predictor,
    reference: Predictor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Ask for every token of every window but the first. `progress` is told how many windows are done, and of how many."""
    count, length = windows.shape
    found = np.empty((4 if reference else 1, count, length - 1))
    for index, window in enumerate(windows):
        others = iter(reference(window)) if reference else None
        for block, logits in enumerate(model(window)):
            other = next(others) if others else None
            if other is not None and other.shape != logits.shape:
                raise UnsupportedError(
                    f"the vocabularies differ: {logits.shape[1]} and {other.shape[1]} tokens",
                    code="E_VOCABULARY",
                    hint="compare models that share a tokenizer",
                )
            first = block * BLOCK
            following = window[first + 1 :][: len(logits)]
            found[:, index, first : first + len(logits)] = score(logits, following, other)
        if progress:
            progress(index + 1, count)
    return Evaluation(*found)
