"""Some channels of a weight, read in bounded memory, and the errors of forms measured on them.

A weight of at most 4 Mi values is taken whole. Of a larger one, runs of 16 neighbouring channels at equal distances, as many as
make 4 Mi values: the same ones every time, and enough neighbours for forms that share a codebook between channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import Array, codec_for
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import CodecSpec, TensorSpec, has_rows
from flyweight.quantizers import QUANTIZERS
from flyweight.targets.ane.named_forms import codec_of_form, quantizer_of_form

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


class MeasuredForms:
    """The errors of forms on a sample of one weight, each measured once. The sample is read when it is needed."""

    def __init__(self, load: Callable[[], Array]) -> None:
        self._load = load
        self._sample: Array | None = None
        self._errors: dict[str, float] = {}
        self._density: float | None = None

    @property
    def sample(self) -> Array:
        if self._sample is None:
            self._sample = self._load()
            if not np.isfinite(self._sample).all():
                raise UnsupportedError("it has NaN or infinite weights", code="E_NONFINITE")
        return self._sample

    def release(self) -> None:
        """Forget the sample, and keep what was measured."""
        self._sample = None

    @property
    def density(self) -> float:
        """The share of weights that are not zero."""
        if self._density is None:
            self._density = np.count_nonzero(self.sample) / max(self.sample.size, 1)
        return self._density

    def error(self, form: str) -> float:
        if form not in self._errors:
            self._errors[form] = form_error(codec_of_form(form), self.sample, quantizer_of_form(form))
        return self._errors[form]


def form_error(codec: CodecSpec, sample: Array, quantizer: str) -> float:
    """The relative RMS error of a sample in a codec, filled as a conversion would; infinite where it cannot hold the values."""
    with np.errstate(over="ignore"):
        values = sample.astype(np.float16)
    if not np.isfinite(values).all():
        return float("inf")
    try:
        asked = codec_for(codec)
        spec = TensorSpec(sample.shape, DType.F16 if asked.exact else DType.F32)
        fitted = asked.fit(spec, values)
        parts = QUANTIZERS[quantizer](values, fitted, spec)
        return relative_error(sample, fitted.decode(spec, parts).astype(np.float32))
    except UnsupportedError:
        return float("inf")


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
