"""Qwen 2 and 2.5: biases on q, k and v; the last layers may have a window."""

from flyweight.models.dialects.gguf_form import COMMON_ABSENT, GgufForm
from flyweight.models.family import ATTENTION, ATTENTION_BIASES, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Family, Field, Window

ABSENT = COMMON_ABSENT | {"use_sliding_window": False}

FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fields=(*COMMON_FIELDS, Field("use_sliding_window", bool, default=False)),
    tensors=EMBEDDINGS + NORMS + ATTENTION + ATTENTION_BIASES + MLP,
    window=Window(switch="use_sliding_window", first=28),
    forms=(GgufForm("qwen2", absent=ABSENT),),
)
