"""Llama 1 to 3.2, and the many models built alike (SmolLM2, TinyLlama, Yi …)."""

from flyweight.models.dialects.gguf_form import GgufForm
from flyweight.models.family import ATTENTION, ATTENTION_BIASES, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Family, in_layers

_BIASES = (
    *(rule._replace(when="attention_bias") for rule in ATTENTION_BIASES),
    *in_layers({"self_attn.o_proj.bias": ("hidden",)}, when="attention_bias"),
    *in_layers(
        {"mlp.gate_proj.bias": ("ffn",), "mlp.up_proj.bias": ("ffn",), "mlp.down_proj.bias": ("hidden",)}, when="mlp_bias"
    ),
)

FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    fields=COMMON_FIELDS,
    tensors=EMBEDDINGS + NORMS + ATTENTION + MLP + _BIASES,
    forms=(GgufForm("llama", interleaved=True, scalings=("linear", "yarn", "llama3")),),
)
