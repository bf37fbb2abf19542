"""Qwen 3 (dense): q and k are normalised head by head, head_dim is free."""

from flyweight.models.dialects.gguf_form import GgufForm
from flyweight.models.families.qwen2 import QWEN_ABSENT, QWEN_FIELDS, QWEN_WINDOW
from flyweight.models.family import ATTENTION, EMBEDDINGS, MLP, NORMS, QK_NORMS, Family

__all__ = ["FAMILY"]

FAMILY = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fields=QWEN_FIELDS,
    tensors=EMBEDDINGS + NORMS + ATTENTION + QK_NORMS + MLP,
    constants={"attention_bias": False},
    head_dim=128,
    window=QWEN_WINDOW,
    forms=(GgufForm("qwen3", absent=QWEN_ABSENT),),
)
