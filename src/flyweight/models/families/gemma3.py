"""Gemma 3, text only: like Gemma 2 with q/k norms; five layers of six have a window and a RoPE base of their own."""

from flyweight.models.family import COMMON_FIELDS, QK_NORMS, Family, Field, Window
from flyweight.models.gemma2 import GEMMA_GRAPH, GEMMA_TENSORS

__all__ = ["FAMILY"]

_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072, "rope_theta": 1e6}

FAMILY = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    gguf="gemma3",
    fields=(
        *(field._replace(default=_DEFAULTS.get(field.hf, field.default), assumed=False) for field in COMMON_FIELDS),
        Field("rope_local_base_freq", "rope.freq_base_swa", "f32", default=10000.0),
        Field("sliding_window", "attention.sliding_window", default=4096, assumed=False),
        Field("final_logit_softcapping", "final_logit_softcapping", "f32", nullable=True),
    ),
    tensors=GEMMA_TENSORS + tuple(rule._replace(add=1.0) for rule in QK_NORMS),
    constants={
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    tied=True,
    head_dim=256,
    window=Window(period=6, key="attention.sliding_window_pattern"),
    wide_layers=62,
    scalings=("linear",),
    graph=GEMMA_GRAPH,
)
