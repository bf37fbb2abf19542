"""Gemma 2: four norms a layer that multiply by 1 + w, capped logits, every other layer with a sliding window."""

from flyweight.models.dialects.gguf_form import COMMON_ABSENT, COMMON_KEYS, GgufForm
from flyweight.models.family import ATTENTION, COMMON_FIELDS, EMBEDDINGS, MLP, Family, Field, Graph, Window, in_layers

_LAYER_NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")

GGUF_TENSORS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

FAMILY = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    fields=(
        *COMMON_FIELDS,
        Field("sliding_window", default=4096),
        Field("attn_logit_softcapping", float, default=50.0, nullable=True),
        Field("final_logit_softcapping", float, default=30.0, nullable=True),
    ),
    tensors=EMBEDDINGS + in_layers({f"{name}_layernorm.weight": ("hidden",) for name in _LAYER_NORMS}) + ATTENTION + MLP,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    constants={"attention_bias": False},
    tied=True,
    head_dim=256,
    window=Window(period=2),
    score_scalar=256,
    graph=Graph(
        scaled_embedding=True,
        norm_offset=1.0,
        attention_post_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
    ),
    forms=(
        GgufForm(
            "gemma2",
            keys=(*COMMON_KEYS, "sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
            absent=COMMON_ABSENT | {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
            tensors=GGUF_TENSORS,
            scalings=("linear",),
            wide_layers=46,
        ),
    ),
)
