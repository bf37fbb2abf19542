"""A model family as data: its settings, its tensors, and how it computes.

A family is a table, not code. Settings and tensors have the names that config.json and transformers give them: those are the
canonical names, whichever dialect a checkpoint is written in. `{i}` in a tensor's name is the layer, and shapes are given in
named dimensions. How another dialect writes a family is a `form` in the same file (see `dialects`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F")


class Field(NamedTuple):
    """One setting: its name, its type, and its value where config.json leaves it out, which is that of transformers."""

    name: str
    type: type = int
    default: float | int | str | None = None
    """A value, or the name of another field to take it from; None when there is no default."""
    nullable: bool = False
    """Whether null switches the feature off; otherwise null is as good as absent."""


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
        sizes: dict[str, int] = self._asdict() | {"q": q, "kv": kv, "qkv": q + 2 * kv, "gate+up": 2 * self.ffn}
        return sizes[name]


class TensorRule(NamedTuple):
    """One tensor, of every layer where the name holds `{i}`."""

    name: str
    shape: tuple[str, ...]
    when: str = ""
    """The setting that says whether the tensor exists; empty when it always does."""


class Window(NamedTuple):
    """Layers that see only the last `sliding_window` positions. Without more, all of them do."""

    switch: str = ""
    """The setting that turns windows on. config.json always gets it: programs differ in what its absence means."""
    period: int = 0
    """Every so many layers one sees everything, where the settings do not say which."""
    first: int | None = None
    """The first layer with a window, where `max_window_layers` does not say; None when no setting may say."""

    @property
    def by_layer(self) -> bool:
        """Whether `layer_types` decides, where it is given."""
        return self.period > 0 or self.first is not None


class Graph(NamedTuple):
    """How the model computes, where families differ; the defaults are Llama's."""

    scaled_embedding: bool = False
    """Whether embeddings are multiplied by √hidden_size."""
    norm_offset: float = 0.0
    """Norms multiply by this + w."""
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    attention_post_norm: str = ""
    """The norm of what attention adds to the residual; empty when there is none."""
    mlp_post_norm: str = ""


class Family(NamedTuple):
    model_type: str
    architecture: str
    """The class that `architectures` in config.json names."""
    fields: tuple[Field, ...]
    tensors: tuple[TensorRule, ...]
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The setting that names what the gate of the MLP goes through, and its default."""
    constants: Mapping[str, object] = {}
    """Settings of which only this value can be computed."""
    tied: bool = False
    """Whether the output shares the embedding when config.json does not say."""
    head_dim: int = 0
    """The width of a head when config.json does not say; 0 for hidden_size / num_attention_heads."""
    window: Window | None = None
    score_scalar: int = 0
    """Scores are divided by the root of `query_pre_attn_scalar`, by default this; 0: by that of the width of a head."""
    partial_rotary: bool = False
    """Whether RoPE may turn only the first part of each head."""
    scalings: Mapping[str, str] = {"linear": "linear", "yarn": "yarn", "llama3": "llama3"}
    """The kinds of `rope_scaling`, by the names that config.json has for them (see `rope_scaling`)."""
    graph: Graph = Graph()
    forms: tuple[Any, ...] = ()
    """How dialects with other names write this family, an object of a type of its own for each dialect."""

    def form(self, kind: type[F]) -> F | None:
        """The form of one dialect; None when that dialect cannot say this family."""
        return next((form for form in self.forms if isinstance(form, kind)), None)


COMMON_FIELDS = (
    Field("hidden_size"),
    Field("intermediate_size"),
    Field("num_hidden_layers"),
    Field("num_attention_heads"),
    Field("num_key_value_heads", default="num_attention_heads"),
    Field("max_position_embeddings"),
    Field("rms_norm_eps", float, default=1e-6),
    Field("rope_theta", float, default=10000.0),
)

UNTIED = "untied"
"""The switch of the output matrix: the opposite of `tie_word_embeddings`."""


def in_layers(shapes: Mapping[str, tuple[str, ...]], when: str = "") -> tuple[TensorRule, ...]:
    """The same tensors in every layer."""
    return tuple(TensorRule(f"model.layers.{{i}}.{name}", shape, when) for name, shape in shapes.items())


EMBEDDINGS = (
    TensorRule("model.embed_tokens.weight", ("vocab", "hidden")),
    TensorRule("model.norm.weight", ("hidden",)),
    TensorRule("lm_head.weight", ("vocab", "hidden"), when=UNTIED),
)
NORMS = in_layers({"input_layernorm.weight": ("hidden",), "post_attention_layernorm.weight": ("hidden",)})
ATTENTION = in_layers(
    {
        "self_attn.q_proj.weight": ("q", "hidden"),
        "self_attn.k_proj.weight": ("kv", "hidden"),
        "self_attn.v_proj.weight": ("kv", "hidden"),
        "self_attn.o_proj.weight": ("hidden", "q"),
    }
)
ATTENTION_BIASES = in_layers(
    {"self_attn.q_proj.bias": ("q",), "self_attn.k_proj.bias": ("kv",), "self_attn.v_proj.bias": ("kv",)}
)
QK_NORMS = in_layers({"self_attn.q_norm.weight": ("head",), "self_attn.k_norm.weight": ("head",)})
MLP = in_layers(
    {
        "mlp.gate_proj.weight": ("ffn", "hidden"),
        "mlp.up_proj.weight": ("ffn", "hidden"),
        "mlp.down_proj.weight": ("hidden", "ffn"),
    }
)
