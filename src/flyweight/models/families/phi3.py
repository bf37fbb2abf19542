"""Phi-3 and Phi-4: q, k, v in one matrix, gate and up in another, RoPE over part of a head, long contexts by factors."""

from flyweight.models.dialects.gguf_form import COMMON_ABSENT, COMMON_KEYS, GgufForm
from flyweight.models.family import ATTENTION, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Family, Field, Window, in_layers

FAMILY = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    fields=(
        *COMMON_FIELDS,
        Field("original_max_position_embeddings", default="max_position_embeddings"),
        Field("sliding_window", nullable=True),
    ),
    tensors=(
        *EMBEDDINGS,
        *NORMS,
        *in_layers({"self_attn.qkv_proj.weight": ("qkv", "hidden")}),
        ATTENTION[-1],
        *in_layers({"mlp.gate_up_proj.weight": ("gate+up", "hidden")}),
        MLP[-1],
    ),
    window=Window(),
    partial_rotary=True,
    scalings={"longrope": "longrope", "su": "longrope", "yarn": "longrope"},  # the first files say su or yarn
    forms=(
        GgufForm(
            "phi3",
            keys=(*COMMON_KEYS, "original_max_position_embeddings", "sliding_window"),
            absent=COMMON_ABSENT | {"original_max_position_embeddings": "max_position_embeddings", "sliding_window": None},
            zero=("sliding_window",),
            scalings=("longrope",),
        ),
    ),
)
