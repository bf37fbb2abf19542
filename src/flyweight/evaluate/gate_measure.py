"""Measuring an output against its source, for the accuracy gate (`foundation.accuracy_gate`) or for a record of what it costs
(`foundation.source_check`).

The tokens are those of a text, or such as the source says itself: windows that begin with its first token (BOS) and go on as
it would, drawn at temperature 1 with fixed seeds. That needs no corpus and no tokenizer, and asks about the text the model is
used for: its own. Both models compute with f32 activations and an f32 cache, so nothing but the weights differs.

On drawn text  E[ln perplexity ratio] = KL(source ‖ artefact)  token by token: the ratio is the same figure, only noisier.
On a text of others it is one more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from flyweight.evaluate import statistics
from flyweight.evaluate.drawn_windows import drawn_windows
from flyweight.evaluate.evaluation import Evaluation, evaluate
from flyweight.evaluate.predict import predictor
from flyweight.evaluate.windows import read_text, windows_of
from flyweight.foundation.accuracy_gate import LEAST_WINDOWS, Gate, Interval, Verdict
from flyweight.foundation.errors import MalformedError, ResourceError, UnsupportedError
from flyweight.foundation.source_check import SourceCheck
from flyweight.runtime import Model, open_model

Array = np.ndarray[Any, Any]

_MOST = 700.0
"""The logarithm of the largest ratio that is told apart from a larger one."""


def measure(
    source: Path | str,
    artefact: Path | str,
    gate: Gate,
    *,
    text: Path | str | None = None,
    threads: int | None = None,
    max_ram: int | None = None,
) -> Verdict:
    """What it costs to take the artefact for its source, on the text of a file or on the source's own. What cannot be run is
    a verdict too, one that does not pass."""
    written = None if text is None else read_text(Path(text))
    found = Verdict(gate, text="own" if written is None else "file", source=Path(source).name)
    try:
        windows, scores = _side_by_side(source, artefact, written, gate.tokens, gate.window, threads, max_ram)
    except (UnsupportedError, MalformedError, ResourceError) as error:
        return replace(found, reason=error.message)
    kl, ratio = _differences(scores)
    digest = blake3(np.ascontiguousarray(windows, "<i8").tobytes()).hexdigest()
    return replace(found, kl=kl, perplexity_ratio=ratio, predicted=scores.surprise.size, tokens_digest=digest)


def check(
    source: Path | str,
    artefact: Path | str,
    written: str,
    *,
    tokens: int,
    window: int,
    threads: int | None = None,
    max_ram: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SourceCheck:
    """What it costs to take the artefact for its source, on a text."""
    found = SourceCheck(Path(source).name)
    try:
        _, scores = _side_by_side(source, artefact, written, tokens, window, threads, max_ram, progress)
    except (UnsupportedError, MalformedError, ResourceError) as error:
        return replace(found, reason=error.message)
    assert scores.reference_surprise is not None
    kl, ratio = _differences(scores)
    theirs, ours = (
        Interval(each.value, each.low, each.high)
        for each in (statistics.perplexity(scores.reference_surprise), statistics.perplexity(scores.surprise))
    )
    return replace(
        found, kl=kl, perplexity=ours, source_perplexity=theirs, perplexity_ratio=ratio, predicted=scores.surprise.size
    )


def _side_by_side(
    source: Path | str,
    artefact: Path | str,
    written: str | None,
    tokens: int,
    window: int,
    threads: int | None,
    max_ram: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Array, Evaluation]:
    """The windows of tokens, and the scores of the artefact beside its source."""
    with ExitStack() as opened:

        def load(path: Path | str) -> Model:
            share = max_ram // 2 if max_ram else None
            model = open_model(path, kv="f32", int8=False, threads=threads, max_ram=share, allow_ungated=True)
            return opened.enter_context(model)

        theirs, ours = load(source), load(artefact)
        length = min(window, theirs.context, ours.context)
        if written is None:
            windows = drawn_windows(theirs, tokens // length, length)
        else:
            windows = windows_of(theirs.tokenizer.encode(written, special=False), length, tokens)
            if len(windows) < LEAST_WINDOWS:
                raise UnsupportedError(f"the text has {len(windows)} windows of {length} tokens, fewer than {LEAST_WINDOWS}")
        return windows, evaluate(windows, predictor(ours), predictor(theirs), progress)


def _differences(scores: Evaluation) -> tuple[Interval, Interval]:
    """KL divergence and the ratio of perplexities."""
    assert scores.reference_surprise is not None
    assert scores.divergence is not None
    change = statistics.mean(scores.surprise - scores.reference_surprise)
    kl = statistics.mean(scores.divergence)
    ratio = Interval(*(exp(min(log, _MOST)) for log in (change.value, change.low, change.high)))
    return Interval(kl.value, kl.low, kl.high), ratio
