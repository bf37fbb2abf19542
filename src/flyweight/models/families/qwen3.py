"""Qwen 3 (dense): q and k are normalised head by head, head_dim is free."""

from flyweight.models.family import ATTENTION, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, QK_NORMS, Family

__all__ = ["FAMILY"]

FAMILY = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf="qwen3",
    fields=COMMON_FIELDS,
    tensors=EMBEDDINGS + NORMS + ATTENTION + QK_NORMS + MLP,
    constants={"hidden_act": "silu", "attention_bias": False},
    unheld={"use_sliding_window": False},
    head_dim=128,
)
