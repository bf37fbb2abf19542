"""Qwen 2 and 2.5: biases on q, k and v."""

from flyweight.models.family import ATTENTION, ATTENTION_BIASES, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Family

__all__ = ["FAMILY"]

FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf="qwen2",
    fields=COMMON_FIELDS,
    tensors=EMBEDDINGS + NORMS + ATTENTION + ATTENTION_BIASES + MLP,
    constants={"hidden_act": "silu"},
    unheld={"use_sliding_window": False},
)
