"""A model family as data: what its configuration and its tensors are called in each dialect.

A family is a table, not code. `fields` pairs the keys of config.json with the keys of GGUF metadata (without
the architecture in front), `tensors` pairs tensor names, where `{i}` is the layer, and gives each its shape in
named dimensions. Everything else about translation is derived from these two tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flyweight.models.transform import Transform

__all__ = [
    "ATTENTION",
    "ATTENTION_BIASES",
    "COMMON_FIELDS",
    "EMBEDDINGS",
    "MLP",
    "NORMS",
    "QK_NORMS",
    "UNTIED",
    "Dims",
    "Family",
    "Field",
    "Graph",
    "TensorRule",
    "Window",
]


class Field(NamedTuple):
    """One number of the configuration: key in config.json, key in GGUF, type in GGUF, value when it is absent."""

    hf: str
    gguf: str
    type: str = "u32"
    default: float | int | str | None = None
    """A number, or the name of another field to take the value from; None when there is no default."""
    assumed: bool = True
    """Whether programs assume the default when GGUF lacks the key; otherwise GGUF must have it."""
    nullable: bool = False
    """May be null in config.json and absent in GGUF; otherwise a field without default is required."""
    null: int | None = None
    """What GGUF stores for null, where absence would mean something else."""
    always_on: bool = False
    """Null in config.json switches a feature off that the GGUF architecture always has."""


class Dims(NamedTuple):
    """The sizes that tensor shapes are made of."""

    layers: int
    vocab: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head: int

    def size(self, name: str) -> int:
        """The length of a named dimension."""
        q, kv = self.heads * self.head, self.kv_heads * self.head
        sizes = {
            "vocab": self.vocab,
            "hidden": self.hidden,
            "ffn": self.ffn,
            "head": self.head,
            "q": q,
            "kv": kv,
            "qkv": q + 2 * kv,
            "gate+up": 2 * self.ffn,
        }
        return sizes[name]


class TensorRule(NamedTuple):
    """One tensor (of every layer, where the names hold `{i}`): both names, shape, and how GGUF's values differ."""

    hf: str
    gguf: str
    shape: tuple[str, ...]
    interleaved: str = ""
    """Which heads ("q" or "kv") GGUF interleaves the rows of."""
    add: float = 0.0
    """What GGUF adds to every value."""
    when: str = ""
    """The switch in config.json that says whether the tensor exists; empty when it always does."""

    def transform(self, dims: Dims, *, to_gguf: bool) -> Transform | None:
        heads = {"": 0, "q": dims.heads, "kv": dims.kv_heads}[self.interleaved]
        if not heads and not self.add:
            return None
        change = Transform(heads=heads, add=self.add)
        return change if to_gguf else change.inverted()

    def name(self, *, gguf: bool) -> str:
        return self.gguf if gguf else self.hf


class Window(NamedTuple):
    """Layers with sliding-window attention: every `period`-th layer attends to everything."""

    period: int
    key: str = ""
    """GGUF key for another period; empty when the architecture allows only this one."""


class Graph(NamedTuple):
    """How the model computes, where families differ; the defaults are Llama's."""

    activation: str = "silu"
    """What the gate of the MLP goes through: "silu", or "gelu_tanh"."""
    scaled_embedding: bool = False
    """Whether embeddings are multiplied by √hidden_size."""
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    attention_post_norm: str = ""
    """The norm of what attention adds to the residual; empty when there is none."""
    mlp_post_norm: str = ""


class Family(NamedTuple):
    model_type: str
    architecture: str
    """The class that `architectures` in config.json names."""
    gguf: str
    """The value of `general.architecture`."""
    fields: tuple[Field, ...]
    tensors: tuple[TensorRule, ...]
    constants: Mapping[str, object] = {}
    """Settings that the GGUF architecture implies; a config that says otherwise cannot be translated."""
    unheld: Mapping[str, object] = {}
    """Settings that change the function and that the GGUF architecture has no key for, with the value it implies."""
    tied: bool = False
    """Whether the output shares the embedding when config.json does not say."""
    head_dim: int = 0
    """The width of a head when config.json does not say; 0 for hidden_size / num_attention_heads."""
    window: Window | None = None
    """Which layers have a sliding window, if any."""
    wide_layers: int = 0
    """Gemma divides scores by √head_dim, but by √(hidden_size / heads) in its 27B, known by this number of layers."""
    partial_rotary: bool = False
    """Whether RoPE may turn only the first part of each head."""
    scalings: tuple[str, ...] = ("linear", "yarn")
    """The kinds of `rope_scaling` that have a form in GGUF (see `rope`)."""
    graph: Graph = Graph()


COMMON_FIELDS = (
    Field("hidden_size", "embedding_length"),
    Field("intermediate_size", "feed_forward_length"),
    Field("num_hidden_layers", "block_count"),
    Field("num_attention_heads", "attention.head_count"),
    Field("num_key_value_heads", "attention.head_count_kv", default="num_attention_heads"),
    Field("max_position_embeddings", "context_length"),
    Field("rms_norm_eps", "attention.layer_norm_rms_epsilon", "f32", default=1e-6, assumed=False),
    Field("rope_theta", "rope.freq_base", "f32", default=10000.0),
)

UNTIED = "untied"
"""The switch of the output matrix: the opposite of `tie_word_embeddings`."""

EMBEDDINGS = (
    TensorRule("model.embed_tokens.weight", "token_embd.weight", ("vocab", "hidden")),
    TensorRule("model.norm.weight", "output_norm.weight", ("hidden",)),
    TensorRule("lm_head.weight", "output.weight", ("vocab", "hidden"), when=UNTIED),
)
NORMS = (
    TensorRule("model.layers.{i}.input_layernorm.weight", "blk.{i}.attn_norm.weight", ("hidden",)),
    TensorRule("model.layers.{i}.post_attention_layernorm.weight", "blk.{i}.ffn_norm.weight", ("hidden",)),
)
ATTENTION = (
    TensorRule("model.layers.{i}.self_attn.q_proj.weight", "blk.{i}.attn_q.weight", ("q", "hidden")),
    TensorRule("model.layers.{i}.self_attn.k_proj.weight", "blk.{i}.attn_k.weight", ("kv", "hidden")),
    TensorRule("model.layers.{i}.self_attn.v_proj.weight", "blk.{i}.attn_v.weight", ("kv", "hidden")),
    TensorRule("model.layers.{i}.self_attn.o_proj.weight", "blk.{i}.attn_output.weight", ("hidden", "q")),
)
ATTENTION_BIASES = (
    TensorRule("model.layers.{i}.self_attn.q_proj.bias", "blk.{i}.attn_q.bias", ("q",)),
    TensorRule("model.layers.{i}.self_attn.k_proj.bias", "blk.{i}.attn_k.bias", ("kv",)),
    TensorRule("model.layers.{i}.self_attn.v_proj.bias", "blk.{i}.attn_v.bias", ("kv",)),
)
QK_NORMS = (
    TensorRule("model.layers.{i}.self_attn.q_norm.weight", "blk.{i}.attn_q_norm.weight", ("head",)),
    TensorRule("model.layers.{i}.self_attn.k_norm.weight", "blk.{i}.attn_k_norm.weight", ("head",)),
)
MLP = (
    TensorRule("model.layers.{i}.mlp.gate_proj.weight", "blk.{i}.ffn_gate.weight", ("ffn", "hidden")),
    TensorRule("model.layers.{i}.mlp.up_proj.weight", "blk.{i}.ffn_up.weight", ("ffn", "hidden")),
    TensorRule("model.layers.{i}.mlp.down_proj.weight", "blk.{i}.ffn_down.weight", ("hidden", "ffn")),
)
