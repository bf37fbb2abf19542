"""Phi-3 and Phi-4: q, k, v in one matrix, gate and up in another, RoPE over part of a head, long contexts by factors."""

from flyweight.models.family import ATTENTION, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Family, Field, TensorRule

__all__ = ["FAMILY"]

FAMILY = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    gguf="phi3",
    fields=(
        *COMMON_FIELDS,
        Field("original_max_position_embeddings", "rope.scaling.original_context_length", default="max_position_embeddings"),
        Field("sliding_window", "attention.sliding_window", nullable=True, null=0),
    ),
    tensors=(
        *EMBEDDINGS,
        *NORMS,
        TensorRule("model.layers.{i}.self_attn.qkv_proj.weight", "blk.{i}.attn_qkv.weight", ("qkv", "hidden")),
        ATTENTION[-1],
        TensorRule("model.layers.{i}.mlp.gate_up_proj.weight", "blk.{i}.ffn_up.weight", ("gate+up", "hidden")),
        MLP[-1],
    ),
    constants={"hidden_act": "silu"},
    partial_rotary=True,
    scalings=("longrope",),
)
