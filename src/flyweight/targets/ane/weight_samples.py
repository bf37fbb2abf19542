"""Some output channels of a weight, read in bounded memory, to measure forms on.

A weight of at most 4 Mi values is taken whole. Of a larger one, runs of 16 neighbouring channels at equal distances, as many as
make 4 Mi values: the same ones every time, and enough neighbours for forms that share a codebook between channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import Array, codec_for
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import has_rows

MOST_VALUES = 1 << 22
RUN = 16


def sampled(checkpoint: Checkpoint, name: str, most: int = MOST_VALUES) -> Array:
    """Channels × weights of a channel, float32."""
    entry = checkpoint.manifest.entries[name]
    channels, width = entry.spec.shape[0], entry.spec.size // entry.spec.shape[0]
    runs = list(chosen_runs(channels, width, most))
    out = np.empty((sum(stop - start for start, stop in runs), width), np.float32)
    at = 0
    reader = _by_rows if has_rows(entry.spec, entry.parts) else _by_runs
    for values in reader(checkpoint, entry, runs):
        out.reshape(-1)[at : at + values.size] = values
        at += values.size
    return out


def chosen_runs(channels: int, width: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of channels, ascending, that do not overlap."""
    if channels * width <= most:
        yield 0, channels
        return
    run = min(RUN, max(most // width, 1), channels)
    count = max(most // (width * run), 1)
    starts = sorted({(channels - run) * at // max(count - 1, 1) // run * run for at in range(count)})
    yield from ((start, min(start + run, channels)) for start in starts)


def _by_rows(checkpoint: Checkpoint, entry: Entry, runs: list[tuple[int, int]]) -> Iterator[Array]:
    rows = entry.spec.rows // entry.spec.shape[0]
    codec = codec_for(entry.codec)
    for start, stop in runs:
        slab = checkpoint.slab(entry.name, start * rows, stop * rows)
        yield codec.decode(slab.spec, slab.parts).reshape(-1)


def _by_runs(checkpoint: Checkpoint, entry: Entry, runs: list[tuple[int, int]]) -> Iterator[Array]:
    """For tensors whose rows cannot be decoded alone: all is decoded, run by run, and what was not chosen dropped."""
    width = entry.spec.size // entry.spec.shape[0]
    tensor = checkpoint.encoded(entry.name)
    at = 0
    for values in codec_for(entry.codec).decoded_runs(entry.spec, tensor.parts):
        for start, stop in runs:
            first, last = max(start * width - at, 0), min(stop * width - at, values.size)
            if first < last:
                yield values[first:last]
        at += values.size


def relative_error(values: Array, decoded: Array) -> float:
    """‖decoded − values‖ / ‖values‖, summed in f64 a few rows at a time; 0 of zeros that stay zeros."""
    lost = energy = 0.0
    step = max((1 << 18) // max(values.shape[1], 1), 1)
    for start in range(0, len(values), step):
        true = values[start : start + step].astype(np.float64)
        lost += float(np.square(decoded[start : start + step] - true).sum())
        energy += float(np.square(true).sum())
    if not energy:
        return 0.0 if not lost else float("inf")
    return float(np.sqrt(lost / energy))
