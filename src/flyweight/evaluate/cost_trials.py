"""What an error of each matrix costs: KL divergence measured with one or two of them in four bits, all others as they are.

    KL ≈ Σ over matrices of  cost · mean (E·x)²

A small error of a matrix moves the logits in proportion, and KL divergence is a square of that. So one trial says what any
error of the matrix costs that has no preferred direction: its KL divergence, divided by the mean of (E·x)² over the inputs x,
from statistics. Nothing but the layers behind a trial is computed again. Windows are short and few: the costs of matrices
differ a hundredfold, and a tenth of their size does not matter to who divides bytes among them.

Errors of different layers add up to less than their sum, and some kinds of matrices more so than others. So the matrices of a
kind are then put into four bits in all layers at once, and their costs are corrected by what that comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import Codec, codec_for, take_rows
from flyweight.evaluate.predict import BLOCK
from flyweight.evaluate.scores import divergence, log_softmax
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.sensitivity import Cost
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec
from flyweight.pipeline.rows import spaced
from flyweight.runtime import Model, open_model
from flyweight.runtime.batch import Windows
from flyweight.runtime.decoder import Buffers, Decoder, Joint, Layer
from flyweight.runtime.linear import Linear

Array = np.ndarray[Any, Any]
InputsOf = Callable[[str], InputStatistics | None]
Output = list[tuple[slice, Linear]]

TRIAL = CodecSpec("affine", {"bits": 4, "group": 32, "scale": "f16"})
WINDOW, COUNT = 64, 4
_ROWS = 64
"""Rows of a matrix that its error is taken from."""
_PIECE = 1 << 14
"""Rows of the output that are made at a time."""
_ROUNDING = 1e-9
"""KL divergences below are rounding."""


def measure_costs(
    checkpoint: Checkpoint,
    inputs_of: InputsOf,
    *,
    windows: Callable[[Model, int, int], Array],
    trial: CodecSpec = TRIAL,
    threads: int | None = None,
    max_ram: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Cost]:
    """Of every matrix of a model, whose checkpoint is closed then; `windows` gives so many windows of such a length."""
    with open_model(checkpoint, kv="f32", int8=False, threads=threads, max_ram=max_ram, allow_ungated=True) as model:
        trials = _Trials(model.decoder, codec_for(trial), windows(model, COUNT, min(WINDOW, model.context)))
        with model.decoder.tensors.turn:
            return dict(trials.costs(inputs_of, progress))


class _Trials:
    def __init__(self, decoder: Decoder, codec: Codec, windows: Array) -> None:
        self.decoder, self.codec, self.ids = decoder, codec, windows.reshape(-1)
        self._cache = Windows(decoder.config, windows.shape[1])
        self._buffers = Buffers(decoder.config, windows.size)
        self._streams = [decoder.embed(self.ids)]
        """What enters each layer, and behind them what leaves the last."""
        for layer in decoder.layers:
            self._streams.append(self._through([layer], self._streams[-1]))
        self._reference = list(self._log_probabilities(self._streams[-1]))

    def costs(self, inputs_of: InputsOf, progress: Callable[[int, int], None] | None) -> Iterator[tuple[str, Cost]]:
        count = self.decoder.config.dims.layers
        kinds = [_kinds(Joint.of(self.decoder.tensors, index)) for index in range(count)]
        total = count + len(kinds[0]) + 1
        alone: list[list[_Tried]] = []
        for index, names in enumerate(kinds):
            alone.append([self._tried(each, self._after(index, each), inputs_of) for each in names])
            if progress:
                progress(index + 1, total)
        for kind, tried in enumerate(zip(*alone, strict=True)):
            together = self._divergence(self._everywhere([names[kind] for names in kinds]))
            share = together / sum(each.kl for each in tried)
            for each in tried:
                yield from each.costs(share)
            if progress:
                progress(count + kind + 1, total)
        for tried_alone in self._outside(inputs_of):
            yield from tried_alone.costs()
        if progress:
            progress(total, total)

    def _outside(self, inputs_of: InputsOf) -> Iterator[_Tried]:
        """Output matrix and embedding, which may be one."""
        name, embedding = self.decoder.tensors.output_name, "model.embed_tokens.weight"
        behind = self._embedded() if name == embedding else self._streams[-1]
        yield self._tried((name,), behind, inputs_of, self._output(name))
        if name != embedding:
            yield self._tried((embedding,), self._embedded(), inputs_of)

    def _trial(self, name: str, rows: Array | None = None) -> EncodedTensor:
        """A matrix, or some rows of it, in four bits."""
        tensor = self.decoder.tensors[name]
        tensor = tensor if rows is None else take_rows(tensor, rows)
        values = codec_for(tensor.codec).decode(tensor.spec, tensor.parts)
        spec = TensorSpec(tensor.spec.shape, self.codec.decoded_dtype(tensor.spec.dtype))
        try:
            return EncodedTensor(spec, self.codec.spec, self.codec.encode(spec, values))
        except FlyweightError as error:
            raise error.at(tensor=name) from None

    def _output(self, name: str) -> Output:
        """The output in four bits, in pieces: whole it may be many times the size of any other matrix."""
        count = self.decoder.vocabulary
        pieces = [slice(start, min(start + _PIECE, count)) for start in range(0, count, _PIECE)]
        return [(rows, self.decoder.output_of(self._trial(name, np.arange(rows.start, rows.stop)))) for rows in pieces]

    def _tried(self, names: tuple[str, ...], behind: Array, inputs_of: InputsOf, output: Output | None = None) -> _Tried:
        """What came of the trial of these matrices: what leaves the last layer then, and the output where that is tried."""
        return _Tried(names, self._divergence(behind, output), sum(self._error(name, inputs_of(name)) for name in names))

    def _divergence(self, behind: Array, output: Output | None = None) -> float:
        logs = zip(self._reference, self._log_probabilities(behind, output), strict=True)
        kl = np.concatenate([divergence(log_q, log_p) for log_q, log_p in logs]).mean()
        return max(float(kl), _ROUNDING)

    def _error(self, name: str, inputs: InputStatistics | None) -> float:
        """The mean of Σ (E·x)² in the trial of a matrix."""
        stored = self.decoder.tensors[name]
        chosen = np.array(spaced(stored.spec.rows, _ROWS))
        values = _decoded(stored, chosen)
        spec = TensorSpec(values.shape, DType.F32)
        error = values - self.codec.decode(spec, self.codec.encode(spec, values))
        if inputs is None:
            inputs = InputStatistics(np.ones(error.shape[1], np.float32))
        return inputs.output_error(error) * stored.spec.rows / len(chosen)

    def _after(self, index: int, names: tuple[str, ...]) -> Array:
        """What leaves the last layer with a trial of some matrices of one layer."""
        x = self._through([self._layer(index, names)], self._streams[index])
        return self._through((later for later in self.decoder.layers if later.index > index), x)

    def _everywhere(self, names: Iterable[tuple[str, ...]]) -> Array:
        """What leaves the last layer with a trial of some matrices of every layer."""
        return self._through((self._layer(index, each) for index, each in enumerate(names)), self._streams[0])

    def _layer(self, index: int, names: tuple[str, ...]) -> Layer:
        """One with a trial of some of its matrices."""
        tensors = self.decoder.tensors
        own = {name: tensors[name] for name in tensors if name.startswith(f"model.layers.{index}.")}
        return self.decoder.layer_of(index, own | {name: self._trial(name) for name in names})

    def _embedded(self) -> Array:
        """What leaves the last layer with an embedding in four bits."""
        rows = self._trial("model.embed_tokens.weight", self.ids)
        return self._through(self.decoder.layers, self.decoder.scaled(codec_for(rows.codec).decode(rows.spec, rows.parts)))

    def _through(self, layers: Iterable[Layer], x: Array) -> Array:
        x = x.copy()
        for layer in layers:
            layer(x, self._cache, self._buffers)
        return x

    def _log_probabilities(self, x: Array, output: Output | None = None) -> Iterator[Array]:
        for start in range(0, len(x), BLOCK):
            yield log_softmax(self.decoder.logits(x[start : start + BLOCK], output=output))


class _Tried(NamedTuple):
    """Matrices in four bits, all others as they are."""

    names: tuple[str, ...]
    kl: float
    error: float
    """The mean of Σ (E·x)², added up over them."""

    def costs(self, share: float = 1.0) -> Iterator[tuple[str, Cost]]:
        """The same for all of them; `share` corrects it by what several such trials come to together."""
        yield from ((name, Cost(share * self.kl / self.error if self.error > 0 else 0.0)) for name in self.names)


def _kinds(joint: Joint) -> list[tuple[str, ...]]:
    """Matrices of a layer, those together that are tried together: queries and keys; gate and up."""
    qkv = [joint.qkv[:2], joint.qkv[2:]] if len(joint.qkv) == 3 else [joint.qkv]
    return [tuple(f"{name}.weight" for name in names) for names in (*qkv, joint.o, joint.gate_up, joint.down)]


def _decoded(tensor: EncodedTensor, rows: Array) -> Array:
    some = take_rows(tensor, rows)
    return np.asarray(codec_for(some.codec).decode(some.spec, some.parts), np.float32)
