"""`calibrate`: statistics of a model from texts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.calibration.layer_walk import LayerWalk, Progress
from flyweight.calibration.sampling import Text, read_texts, sample_windows
from flyweight.checkpoint import open_checkpoint
from flyweight.evaluate.drawn_windows import drawn_windows
from flyweight.foundation.errors import FlyweightError, ResourceError, UnsupportedError
from flyweight.foundation.limits import parse_size
from flyweight.pipeline.output.replacing import require_apart
from flyweight.runtime import Model, open_model

Array = np.ndarray[Any, Any]

TOKENS, WINDOW = 24576, 128


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was gathered, and where it is."""

    destination: str
    nbytes: int
    tokens: int
    windows: int
    window: int
    inputs: int
    matrices: int
    gram: bool
    resumed: int
    """Layers that an earlier run had done."""
    seconds: float
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"notes": list(self.notes)}


def calibrate(
    model: Path | str,
    destination: Path | str,
    *,
    texts: Sequence[Path | str | Text],
    deltas: Sequence[Path | str] = (),
    gram: bool = False,
    tokens: int = TOKENS,
    window: int = WINDOW,
    bos: bool = False,
    samples: int = 0,
    exact: bool = False,
    threads: int | None = None,
    max_ram: int | str | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Calibration:
    """Run `texts` through a model and write what its matrices are multiplied with to `destination`, which appears complete or
    not at all.

    `tokens` is how many tokens of the texts at most, in windows of `window`; `samples` is how many more windows the model
    itself generates. Products are computed like those of `run`, with f32 activations if `exact`.
    """
    started = time.perf_counter()
    destination = Path(os.path.abspath(destination))
    paths = [text for text in texts if not isinstance(text, Text)]
    require_apart(destination, [model, *deltas, *paths])
    read = [text if isinstance(text, Text) else read_texts([text])[0] for text in texts]
    ram = None if max_ram is None else parse_size(max_ram, "max_ram")
    checkpoint = open_checkpoint(model, deltas=deltas, checks_digests=True)
    with open_model(checkpoint, kv="f32", int8=not exact, threads=threads, max_ram=ram, allow_ungated=True) as opened:
        windows = _windows(opened, read, tokens, window, bos, samples)
        walk = LayerWalk(opened, destination, windows, gram=gram)
        notes = list(walk.notes())
        if walk.tokens < (wanted := tokens // window * window + samples * window):
            notes.append(f"the texts have {walk.tokens} tokens of the {wanted} asked for")
        walk.require_memory(ram)
        about: dict[str, Any] = {"bos": bos, "samples": samples, "activations": "f32" if exact else "as run"}
        about |= {"texts": [{"name": text.name, "blake3": text.digest} for text in read]}
        try:
            nbytes, resumed = walk.carry_out(about, [text.name for text in read], resume=resume, force=force, progress=progress)
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name) from None
    return Calibration(
        str(destination), nbytes, walk.tokens, len(walk.windows), window, len(walk.inputs), len(walk.rows), gram, resumed,
        round(time.perf_counter() - started, 3), tuple(notes),
    )  # fmt: skip


def _windows(model: Model, texts: Sequence[Text], tokens: int, window: int, bos: bool, samples: int) -> Array:
    if window > model.context:
        raise ResourceError(
            f"a window of {window} tokens exceeds the model's context of {model.context}", code="E_CONTEXT",
            hint=f"use at most {model.context}",
        )  # fmt: skip
    found = [sample_windows(model, texts, max(tokens // window, 1), window, bos=bos)] if texts else []
    if samples:
        found.append(drawn_windows(model, samples, window))
    if not found:
        raise UnsupportedError("there is neither text nor a number of samples", code="E_TEXT", hint="give --text FILE")
    return np.concatenate(found)
