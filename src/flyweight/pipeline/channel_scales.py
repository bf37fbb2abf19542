"""`--awq`: channels that matter are made larger before quantizing, and what feeds them smaller; the function is the same.

    W · x  =  (W · diag(s)) · (x / s)        s[k] = (E x[k]²)^0.1 over the geometric mean of it

An error of a code then does s times less to the channel (AWQ: Lin et al. 2023). The division goes where x comes from: into the
norm before q, k, v or before gate and up, or into the rows of `up` before `down`. What is written is other
weights, which any program runs. `o_proj` is left alone: its inputs are those of v, shared by several heads, and gain nothing.

Matrices with one input share its scales. The weights of a norm are first rounded to what every element type holds, bf16, and
s is what they then are: so nothing is lost where norms are stored in few bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple
from weakref import ref

import numpy as np
from blake3 import blake3

from flyweight.checkpoint import Checkpoint
from flyweight.checkpoint.rescaled import Rescaled, Scales
from flyweight.codecs import Array, codec_for
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import column_weights
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.models import Blueprint, blueprint
from flyweight.pipeline.matrix_inputs import MatrixInputs
from flyweight.pipeline.plans.job import Job

_EXPONENT = 0.1
"""Of the mean of x². docs/decisions/0232."""
_LARGEST = 16.0


class _Joint(NamedTuple):
    """Matrices that are multiplied with one input, and the tensor that is divided instead; canonical names."""

    matrices: tuple[str, ...]
    giver: str
    is_norm: bool


def rescaled(job: Job) -> Job:
    """The job with the channels scaled of every input all of whose matrices it quantizes.

    E_STATISTICS where nothing is known of the inputs, E_AWQ where there is no such input.
    """
    if not job.inputs:
        raise UnsupportedError(
            "channels are scaled by what they are multiplied with, of which nothing is known", code="E_STATISTICS",
            hint="`flyweight calibrate MODEL -o STATS`, then `--stats STATS`; or `--calibrate`",
        )  # fmt: skip
    checkpoint = job.checkpoint
    model = blueprint(checkpoint.manifest, checkpoint.read)
    quantized = {
        step.source for step in job.plan.steps if step.action == "transcode" and not codec_for(step.codec).exact and step.source
    }
    made = _Made(checkpoint, model, job.inputs)
    joints = [joint for joint in _joints(model) if made.knows(joint)]
    for joint in joints:
        lossy = {model.tensors[name].name for name in (*joint.matrices, *(() if joint.is_norm else (joint.giver,)))}
        if lossy <= quantized:
            made.add(joint)
    if not made.inputs:
        raise UnsupportedError(
            "no channels can be scaled: no norm or matrix comes right before matrices that are quantized", code="E_AWQ",
            file=checkpoint.bundle.name, hint="leave out --awq",
        )  # fmt: skip
    scales = {name: Scales(made.columns.get(name), made.rows.get(name)) for name in made.columns.keys() | made.rows.keys()}
    note = f"channels of {len(made.inputs)} inputs scaled"
    return replace(job, checkpoint=Rescaled(checkpoint, scales, made.norms), inputs=made.known(), notes=(*job.notes, note))


def _joints(model: Blueprint) -> Iterator[_Joint]:
    graph, there = model.config.family.graph, model.tensors
    for index in range(model.config.dims.layers):
        prefix = f"model.layers.{index}."

        def those(*names: str, prefix: str = prefix) -> tuple[str, ...]:
            whole = (prefix + (name if name.endswith(".bias") else f"{name}.weight") for name in names)
            return tuple(name for name in whole if name in there)

        attention = those("self_attn.qkv_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        mlp = those("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj")
        if graph.attention_norm != graph.mlp_norm:
            for matrices, norm in ((attention, graph.attention_norm), (mlp, graph.mlp_norm)):
                for giver in those(norm) if norm else ():
                    yield _Joint(matrices, giver, True)
        for giver in () if those("mlp.up_proj.bias") else those("mlp.up_proj", "mlp.gate_up_proj")[:1]:
            yield _Joint(those("mlp.down_proj"), giver, False)


class _Made:
    """Scales by the names of tensors in the source."""

    def __init__(self, checkpoint: Checkpoint, model: Blueprint, before: MatrixInputs) -> None:
        self.checkpoint, self.model, self.before = checkpoint, model, before
        self.columns: dict[str, Array] = {}
        self.rows: dict[str, Array] = {}
        self.norms: dict[str, Array] = {}
        self.inputs: list[tuple[tuple[str, ...], InputStatistics]] = []

    def _stored(self, canonical: str) -> str:
        return self.model.tensors[canonical].name

    def knows(self, joint: _Joint) -> bool:
        """Whether something is known of the input, and the giver is stored as numbers that can be divided."""
        entry = self.checkpoint.manifest.entries[self._stored(joint.giver)]
        plain = not joint.is_norm or (entry.codec == RAW and entry.spec.dtype.is_float)
        return bool(joint.matrices) and plain and all(self.before.inputs_of(self._stored(name)) for name in joint.matrices)

    def add(self, joint: _Joint) -> None:
        names = tuple(map(self._stored, joint.matrices))
        inputs, giver = self.before.inputs_of(names[0]), self._stored(joint.giver)
        assert inputs is not None
        scales = scales_of(inputs.importance)
        if joint.is_norm:
            self.norms[giver], scales = self._divided(joint.giver, scales)
        else:
            rows = self.rows[giver] = np.ones(self.checkpoint.manifest.entries[giver].spec.rows, np.float32)
            rows[-len(scales) :] = 1 / scales  # behind those of the gate, where both are one matrix
        for name in names:
            self.columns[name] = scales
        self.inputs.append((names, _ScaledInputs(inputs, scales)))

    def _divided(self, canonical: str, scales: Array) -> tuple[Array, Array]:
        """The weights of a norm with its gain divided, as they are stored, and what it is divided by then."""
        stored = self.model.tensors[canonical]
        values = np.asarray(self.checkpoint[stored.name], np.float64).reshape(-1)
        gain = self.model.config.family.graph.norm_offset - stored.add
        narrow = astype(((values + gain) / scales - gain).astype(np.float32), DType.BF16.numpy)
        after = astype(narrow, DType.F32.numpy).astype(np.float64)
        with np.errstate(all="ignore"):
            divided_by = (values + gain) / (after + gain)
            sound = np.isfinite(divided_by) & (divided_by > 0.5 * scales) & (divided_by < 2 * scales)
        dtype = self.checkpoint.manifest.entries[stored.name].spec.dtype
        after = np.where(sound, after, values)
        return np.asarray(astype(after.astype(np.float32), dtype.numpy)), np.where(sound, divided_by, 1).astype(np.float32)

    def known(self) -> MatrixInputs:
        scaled = {name: inputs for names, inputs in self.inputs for name in names}
        digest = blake3(self.before.digest.encode())
        for name, scales in sorted(self.columns.items()):
            digest.update(name.encode() + b"\0" + scales.tobytes())
        before = self.before.inputs_of
        return replace(self.before, inputs_of=lambda name: scaled.get(name) or before(name), digest=digest.hexdigest())


def scales_of(importance: Array) -> Array:
    """By how much each channel is made larger, f32."""
    weights = column_weights(importance, TensorSpec((1, len(importance)), DType.F32)).astype(np.float64)
    scales = weights**_EXPONENT
    return np.asarray(np.clip(scales / np.exp(np.log(scales).mean()), 1 / _LARGEST, _LARGEST), np.float32)


class _ScaledInputs(InputStatistics):
    """Inputs divided by scales. Their Gram matrix is made when it is asked for, and kept by whoever uses it."""

    def __init__(self, before: InputStatistics, scales: Array) -> None:
        wide = before.importance.astype(np.float64) / np.square(scales, dtype=np.float64)
        for name, value in {"importance": wide.astype(np.float32), "tokens": before.tokens}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_of", (before, 1 / scales))
        object.__setattr__(self, "_made", lambda: None)

    _of: tuple[InputStatistics, Array]
    _made: Callable[[], Array | None]

    @property
    def has_gram(self) -> bool:
        return self._of[0].has_gram

    @property
    def gram(self) -> Array | None:
        there: Array | None = self._made()
        before, by = self._of
        if there is None and (gram := before.gram) is not None:
            there = gram * by
            there *= by[:, None]
            object.__setattr__(self, "_made", ref(there))
        return there
