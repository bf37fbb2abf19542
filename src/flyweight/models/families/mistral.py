"""Mistral 7B and Nemo: like Llama; all layers have a window, or none."""

from flyweight.models.dialects.gguf_form import COMMON_ABSENT, GgufForm
from flyweight.models.families import llama
from flyweight.models.family import ATTENTION, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Field, Window

FAMILY = llama.FAMILY._replace(
    model_type="mistral",
    architecture="MistralForCausalLM",
    fields=(*COMMON_FIELDS, Field("sliding_window", default=4096, nullable=True)),
    tensors=EMBEDDINGS + NORMS + ATTENTION + MLP,
    window=Window(switch="sliding_window"),
    # GGUF calls it llama; `flyweight.model_type` remembers which it was.
    forms=(GgufForm("llama", absent=COMMON_ABSENT | {"sliding_window": None}, interleaved=True),),
)
