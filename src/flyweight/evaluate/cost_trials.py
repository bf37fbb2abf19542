"""What an error of each matrix costs: KL divergence measured with one or two of them in four bits, all others as they are.

    KL ≈ Σ over matrices of  cost · mean (E·x)²

A small error of a matrix moves the logits in proportion, and KL divergence is a square of that. So one trial says what any
error of the matrix costs that has no preferred direction: its KL divergence, divided by the mean of (E·x)² over the inputs x,
from statistics. Nothing but the layers behind a trial is computed again. Windows are short and few: the costs of matrices
differ a hundredfold, and a tenth of their size does not matter to who divides bytes among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import codec_for, take_rows
from flyweight.evaluate.predict import BLOCK
from flyweight.evaluate.scores import divergence, log_softmax
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.sensitivity import Cost
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec
from flyweight.pipeline.rows import spaced
from flyweight.runtime import Model, open_model
from flyweight.runtime.batch import Windows
from flyweight.runtime.decoder import Buffers, Decoder, Joint, Layer

Array = np.ndarray[Any, Any]
InputsOf = Callable[[str], InputStatistics | None]

TRIAL = CodecSpec("affine", {"bits": 4, "group": 32, "scale": "f16"})
WINDOW, COUNT = 64, 4
_ROWS = 64
"""Rows of a matrix that its error is taken from."""
_ROUNDING = 1e-9
"""KL divergences below are rounding."""


def measure_costs(
    checkpoint: Checkpoint,
    inputs_of: InputsOf,
    *,
    windows: Callable[[Model, int, int], Array],
    threads: int | None = None,
    max_ram: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Cost]:
    """Of every matrix of a model, whose checkpoint is closed then; `windows` gives so many windows of such a length."""
    with open_model(checkpoint, kv="f32", int8=False, threads=threads, max_ram=max_ram, allow_ungated=True) as model:
        trials = _Trials(model.decoder, windows(model, COUNT, min(WINDOW, model.context)))
        with model.decoder.tensors.turn:
            return dict(trials.costs(inputs_of, progress))


class _Trials:
    def __init__(self, decoder: Decoder, windows: Array) -> None:
        self.decoder, self.ids = decoder, windows.reshape(-1)
        self._cache = Windows(decoder.config, windows.shape[1])
        self._buffers = Buffers(decoder.config, windows.size)
        self._streams = [decoder.embed(self.ids)]
        """What enters each layer, and behind them what leaves the last."""
        for layer in decoder.layers:
            self._streams.append(self._through([layer], self._streams[-1]))
        self._reference = list(self._log_probabilities(self._streams[-1]))

    def costs(self, inputs_of: InputsOf, progress: Callable[[int, int], None] | None) -> Iterator[tuple[str, Cost]]:
        decoder, count = self.decoder, self.decoder.config.dims.layers
        for index in range(count):
            for names in _together(Joint.of(decoder.tensors, index)):
                changed = {f"{name}.weight": self._trial(f"{name}.weight") for name in names}
                own = {name: decoder.tensors[name] for name in decoder.tensors if name.startswith(f"model.layers.{index}.")}
                layer = decoder.layer_of(index, own | changed)
                yield from self._costs(changed, inputs_of, self._after(index, layer), None)
            if progress:
                progress(index + 1, count + 1)
        name = decoder.tensors.output_name
        changed = {name: self._trial(name)}
        behind = self._streams[-1]
        if decoder.config.tied:
            codec, tensor = codec_for(TRIAL), changed[name]
            rows = take_rows(tensor, self.ids)
            behind = self._through(decoder.layers, decoder.scaled(codec.decode(rows.spec, rows.parts)))
        yield from self._costs(changed, inputs_of, behind, changed[name])
        if progress:
            progress(count + 1, count + 1)

    def _trial(self, name: str) -> EncodedTensor:
        tensor = self.decoder.tensors[name]
        values = codec_for(tensor.codec).decode(tensor.spec, tensor.parts)
        codec, spec = codec_for(TRIAL), TensorSpec(tensor.spec.shape, codec_for(TRIAL).decoded_dtype(tensor.spec.dtype))
        return EncodedTensor(spec, codec.spec, codec.encode(spec, values))

    def _costs(
        self, changed: dict[str, EncodedTensor], inputs_of: InputsOf, behind: Array, output: EncodedTensor | None
    ) -> Iterator[tuple[str, Cost]]:
        """The same for all that were changed together."""
        logs = zip(self._reference, self._log_probabilities(behind, output), strict=True)
        kl = float(np.concatenate([divergence(log_q, log_p) for log_q, log_p in logs]).mean())
        error = sum(self._error(name, tensor, inputs_of(name)) for name, tensor in changed.items())
        cost = Cost(max(kl, _ROUNDING) / error if error > 0 else 0.0)
        yield from ((name, cost) for name in changed)

    def _error(self, name: str, trial: EncodedTensor, inputs: InputStatistics | None) -> float:
        """The mean of Σ (E·x)²."""
        stored = self.decoder.tensors[name]
        chosen = np.array(spaced(stored.spec.rows, _ROWS))
        codec, rows = codec_for(trial.codec), take_rows(trial, chosen)
        error = _decoded(stored, chosen) - codec.decode(rows.spec, rows.parts)
        if inputs is None:
            inputs = InputStatistics(np.ones(error.shape[1], np.float32))
        return inputs.output_error(error) * stored.spec.rows / len(chosen)

    def _after(self, index: int, layer: Layer) -> Array:
        """What leaves the last layer with one of another kind."""
        x = self._through([layer], self._streams[index])
        return self._through((later for later in self.decoder.layers if later.index > index), x)

    def _through(self, layers: Iterable[Layer], x: Array) -> Array:
        x = x.copy()
        for layer in layers:
            layer(x, self._cache, self._buffers)
        return x

    def _log_probabilities(self, x: Array, output: EncodedTensor | None = None) -> Iterator[Array]:
        other = None if output is None else [(slice(None), self.decoder.output_of(output))]
        for start in range(0, len(x), BLOCK):
            yield log_softmax(self.decoder.logits(x[start : start + BLOCK], output=other))


def _together(joint: Joint) -> Iterator[tuple[str, ...]]:
    """Matrices that are tried together: queries and keys; gate and up."""
    if len(joint.qkv) == 3:
        yield joint.qkv[:2]
        yield joint.qkv[2:]
    else:
        yield joint.qkv
    yield from (joint.o, joint.gate_up, joint.down)


def _decoded(tensor: EncodedTensor, rows: Array) -> Array:
    some = take_rows(tensor, rows)
    return np.asarray(codec_for(some.codec).decode(some.spec, some.parts), np.float32)
