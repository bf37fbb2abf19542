"""Qwen 3 (dense): q and k are normalized per head, head_dim is free."""

from flyweight.models.dialects.gguf_form import GgufForm
from flyweight.models.families import qwen2
from flyweight.models.family import ATTENTION, EMBEDDINGS, MLP, NORMS, QK_NORMS

FAMILY = qwen2.FAMILY._replace(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    tensors=EMBEDDINGS + NORMS + ATTENTION + QK_NORMS + MLP,
    constants={"attention_bias": False},
    head_dim=128,
    forms=(GgufForm("qwen3", absent=qwen2.ABSENT),),
)
