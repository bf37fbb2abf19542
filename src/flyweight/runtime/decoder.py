"""A decoder-only transformer over weights as they are stored.

    x = embedding[tokens]                                        (n, hidden)
    for each layer:
        x += O · attention(rope(Q · norm(x)), rope(K · norm(x)), V · norm(x))
        x += down · (act(gate · norm(x)) ⊙ up · norm(x))
    logits = output · norm(x)                                    (n, vocab)

Families differ in the table `models.family.Graph` and in which tensors they have; the graph is this file. Norms are part of the
product that follows them, so that a layer is five calls: qkv, attention, o, gate and up, down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.codecs import codec_for
from flyweight.foundation.tensor import EncodedTensor
from flyweight.kernels.products.activations import normalize
from flyweight.models import Blueprint, Config
from flyweight.runtime.kv import KeyValues
from flyweight.runtime.linear import DecodedRows, Gated, Linear
from flyweight.runtime.rotary import Rotary
from flyweight.runtime.tensors import Tensors
from flyweight.sources import Uncopied

Array = np.ndarray[Any, Any]

BLOCK = 256
"""Tokens computed at a time when there are many."""


Tap = Callable[[tuple[str, ...], Array], None]
"""tap(names, inputs): what the matrices of these names are about to be multiplied with, f32 (n, columns), theirs only for
the time of the call."""


class Settings(NamedTuple):
    """What does not change the function of a model."""

    int8: bool = True
    """Whether products may round activations (few to int8, a scale for every four), or take all as f32."""
    threads: int = 1


def _vector(tensors: Mapping[str, EncodedTensor], name: str, add: float = 0.0) -> Array:
    tensor = tensors[name]
    values = np.ascontiguousarray(codec_for(tensor.codec).decode(tensor.spec, tensor.parts), np.float32)
    return values + np.float32(add) if add else values


class Joint(NamedTuple):
    """The matrices of a layer by what they are multiplied with, by their canonical names without `.weight`."""

    qkv: tuple[str, ...]
    o: tuple[str, ...]
    gate_up: tuple[str, ...]
    down: tuple[str, ...]

    @classmethod
    def of(cls, names: Collection[str], index: int) -> Joint:
        """Of a layer of a model that has tensors of these names: some families have one matrix where others have several."""
        prefix = f"model.layers.{index}."

        def either(whole: str, *parts: str) -> tuple[str, ...]:
            return (prefix + whole,) if f"{prefix}{whole}.weight" in names else tuple(prefix + part for part in parts)

        return cls(
            either("self_attn.qkv_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            (f"{prefix}self_attn.o_proj",),
            either("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj"),
            (f"{prefix}mlp.down_proj",),
        )


class Layer:
    """One layer; `__call__` adds its two halves to x, in place."""

    def __init__(
        self, tensors: Mapping[str, EncodedTensor], blueprint: Blueprint, index: int, rotary: Rotary, settings: Settings
    ) -> None:
        prefix = f"model.layers.{index}."
        config, graph = blueprint.config, blueprint.config.family.graph
        self.index, self.rotary, self.threads = index, rotary, settings.threads
        self.eps = float(config.values["rms_norm_eps"])
        self.heads, self.scale, self.pairs = config.dims.heads, config.attention_scale, blueprint.pairs
        self.softcap = float(config.values.get("attn_logit_softcapping") or 0.0)

        def norm(name: str) -> Array | None:
            full = f"{prefix}{name}.weight"
            return _vector(tensors, full, blueprint.gain) if name and full in tensors else None

        def bias(*names: str) -> Array | None:
            full = [f"{name}.bias" for name in names]
            return np.concatenate([_vector(tensors, name) for name in full]) if full[0] in tensors else None

        def linear(*names: str) -> Linear:
            found = [tensors[f"{name}.weight"] for name in names]
            return Linear(found, bias(*names), int8=settings.int8, threads=settings.threads)

        self.attention_norm, self.mlp_norm = norm(graph.attention_norm), norm(graph.mlp_norm)
        self.attention_post, self.mlp_post = norm(graph.attention_post_norm), norm(graph.mlp_post_norm)
        self.q_norm, self.k_norm = norm("self_attn.q_norm"), norm("self_attn.k_norm")
        self.joint = joint = Joint.of(tensors, index)
        self.qkv, self.o, self.down = linear(*joint.qkv), linear(*joint.o), linear(*joint.down)
        self.gated = Gated(linear(*joint.gate_up), config.activation)

    def __call__(self, x: Array, cache: KeyValues, buffers: Buffers, tap: Tap | None = None) -> None:
        n = len(x)
        qkv, heads, ffn = buffers.qkv[:n], buffers.heads[:n], buffers.ffn[:n]
        if tap:
            tap(self.joint.qkv, normalize(x, self.attention_norm, self.eps))
        self.qkv(x, qkv, gain=self.attention_norm, eps=self.eps)
        cos, sin = self.rotary.tables(cache.reach(n))
        cache.attend(
            self.index, qkv, self.heads, cos, sin, heads, scale=self.scale, pairs=self.pairs, q_gain=self.q_norm,
            k_gain=self.k_norm, eps=self.eps, cap=self.softcap, threads=self.threads,
        )  # fmt: skip
        if tap:
            tap(self.joint.o, heads)
        self._add(self.o, heads, x, self.attention_post, buffers)
        if tap:
            tap(self.joint.gate_up, normalize(x, self.mlp_norm, self.eps))
        self.gated(x, ffn, gain=self.mlp_norm, eps=self.eps)
        if tap:
            tap(self.joint.down, ffn)
        self._add(self.down, ffn, x, self.mlp_post, buffers)

    def _add(self, linear: Linear, values: Array, x: Array, post_norm: Array | None, buffers: Buffers) -> None:
        """x += linear(values), which Gemma normalises first."""
        if post_norm is None:
            linear(values, x, add=True)
            return
        change = buffers.hidden[: len(x)]
        linear(values, change)
        kernels.rms_norm(change, post_norm, self.eps, x, add=True)


class Buffers:
    """For the values between products: one call has them at a time, every layer and the next call use them again."""

    def __init__(self, config: Config, tokens: int) -> None:
        dims = config.dims

        def buffer(width: int) -> Array:
            return np.empty((tokens, width), np.float32)

        self.tokens = tokens
        self.qkv, self.heads = buffer(dims.size("qkv")), buffer(dims.size("q"))
        self.ffn, self.hidden = buffer(dims.ffn), buffer(dims.hidden)


class Decoder(Uncopied):
    """A model ready to run. `forward` takes tokens into a cache and gives the logits that follow them.

    Threads may share it, each with a cache of its own. Where layers are streamed, one computes at a time.
    """

    def __init__(self, tensors: Tensors, context: int, settings: Settings) -> None:
        self.tensors, self.context, self.settings = tensors, context, settings
        self.blueprint = tensors.blueprint
        self.config = config = tensors.blueprint.config
        locality = {config.has_local_rope(layer) for layer in range(config.dims.layers)}
        self._rotaries = {local: Rotary(config, context, local=local) for local in locality}
        self.layers: Iterable[Layer] = tensors.layers(lambda held, index: self.layer_of(index, held))
        self._output = tensors.output(self.output_of)
        self._factor = np.float32(sqrt(config.dims.hidden)) if config.family.graph.scaled_embedding else None
        self._softcap = float(config.values.get("final_logit_softcapping") or 0.0)
        self._free = [Buffers(config, 1)]

    @cached_property
    def _embedding(self) -> DecodedRows:
        return DecodedRows(self.tensors["model.embed_tokens.weight"])

    @cached_property
    def _norm(self) -> Array:
        return _vector(self.tensors, "model.norm.weight", self.blueprint.gain)

    def embed(self, ids: Array) -> Array:
        """What enters the first layer for these tokens, f32 (n, hidden)."""
        return self.scaled(self._embedding[ids])

    def scaled(self, rows: Array) -> Array:
        """Rows of the embedding as they enter the first layer."""
        x = np.ascontiguousarray(rows)
        return x if self._factor is None else x * self._factor

    def output_input(self, x: Array) -> Array:
        """What the output matrix is multiplied with, from what leaves the last layer."""
        return normalize(x, self._norm, float(self.config.values["rms_norm_eps"]))

    @property
    def vocabulary(self) -> int:
        return self.config.dims.vocab

    def cache(self, kind: str = "f16") -> KeyValues:
        """An empty context for this model."""
        dims = self.config.dims
        return KeyValues(dims.layers, dims.kv_heads, dims.head, self.context, kind, self.config.windows)

    def forward(
        self, tokens: Sequence[int] | Array, cache: KeyValues, *, every: bool = False, out: Array | None = None
    ) -> Array:
        """The logits after the last token, f32 (1, vocab), or after each of them, (n, vocab). All tokens join the cache.

        `out`, f32 (1, vocab), takes the logits of the last token: new memory for each costs a small model some of its speed.
        """
        self.tensors.checkpoint.check_open()
        ids = np.asarray(tokens, np.int64)
        if ids.ndim != 1 or not len(ids) or ids.min() < 0 or ids.max() >= self.vocabulary:
            raise ValueError(f"tokens must be one or more ids below {self.vocabulary}")
        with cache.in_use():
            blocks = [self._block(ids[at : at + BLOCK], cache, every, out) for at in range(0, len(ids), BLOCK)]
        return np.concatenate(blocks) if every and len(blocks) > 1 else blocks[-1]

    @contextmanager
    def _buffers(self, tokens: int) -> Iterator[Buffers]:
        """Buffers for so many tokens, of this call alone: taking from a list and giving back are single steps of Python's."""
        try:
            buffers = self._free.pop()
        except IndexError:  # other threads have them
            buffers = Buffers(self.config, tokens)
        if tokens > buffers.tokens:
            buffers = Buffers(self.config, max(tokens, BLOCK))
        try:
            yield buffers
        finally:
            self._free.append(buffers)

    def _block(self, ids: Array, cache: KeyValues, every: bool, out: Array | None) -> Array:
        with self._buffers(len(ids)) as buffers, self.tensors.turn:
            x = self.embed(ids)
            for layer in self.layers:
                layer(x, cache, buffers)
            cache.advance(len(ids))
            return self.logits(x if every else x[-1:], None if every else out)

    def logits(self, x: Array, out: Array | None = None, output: Iterable[tuple[slice, Linear]] | None = None) -> Array:
        """f32 (n, vocab) from what leaves the last layer, by another output where one is given; for whoever has the tensors'
        turn."""
        logits = np.empty((len(x), self.vocabulary), np.float32) if out is None else out
        for rows, product in output or self._output:
            part = logits if product.rows == self.vocabulary else np.empty((len(x), product.rows), np.float32)
            product(x, part, gain=self._norm, eps=float(self.config.values["rms_norm_eps"]))
            if part is not logits:
                logits[:, rows] = part
        if self._softcap:
            kernels.softcap(logits, self._softcap)
        return logits

    def layer_of(self, index: int, tensors: Mapping[str, EncodedTensor]) -> Layer:
        """A layer of this model with these tensors for its own."""
        return Layer(tensors, self.blueprint, index, self._rotaries[self.config.has_local_rope(index)], self.settings)

    def output_of(self, tensor: EncodedTensor) -> Linear:
        """The output with this matrix for its own."""
        return Linear([tensor], int8=self.settings.int8, threads=self.settings.threads)
