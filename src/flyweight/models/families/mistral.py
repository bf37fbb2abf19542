"""Mistral 7B and Nemo. GGUF calls it `llama`; `flyweight.model_type` remembers which it was."""

from flyweight.models.family import COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Family
from flyweight.models.llama import INTERLEAVED_ATTENTION

__all__ = ["FAMILY"]

FAMILY = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    gguf="llama",
    fields=COMMON_FIELDS,
    tensors=EMBEDDINGS + NORMS + INTERLEAVED_ATTENTION + MLP,
    constants={"hidden_act": "silu"},
    unheld={"sliding_window": None},
)
