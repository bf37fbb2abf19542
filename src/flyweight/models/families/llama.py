"""Llama 1 to 3.2, and the many models built alike (SmolLM2, TinyLlama, Yi …)."""

from flyweight.models.family import ATTENTION, ATTENTION_BIASES, COMMON_FIELDS, EMBEDDINGS, MLP, NORMS, Family, TensorRule

__all__ = ["FAMILY", "INTERLEAVED_ATTENTION"]

_q, _k, _v, _o = ATTENTION
_qb, _kb, _vb = ATTENTION_BIASES

INTERLEAVED_ATTENTION = (_q._replace(interleaved="q"), _k._replace(interleaved="kv"), _v, _o)

_BIASES = (
    _qb._replace(interleaved="q", when="attention_bias"),
    _kb._replace(interleaved="kv", when="attention_bias"),
    _vb._replace(when="attention_bias"),
    TensorRule("model.layers.{i}.self_attn.o_proj.bias", "blk.{i}.attn_output.bias", ("hidden",), when="attention_bias"),
    TensorRule("model.layers.{i}.mlp.gate_proj.bias", "blk.{i}.ffn_gate.bias", ("ffn",), when="mlp_bias"),
    TensorRule("model.layers.{i}.mlp.up_proj.bias", "blk.{i}.ffn_up.bias", ("ffn",), when="mlp_bias"),
    TensorRule("model.layers.{i}.mlp.down_proj.bias", "blk.{i}.ffn_down.bias", ("hidden",), when="mlp_bias"),
)

FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    gguf="llama",
    fields=COMMON_FIELDS,
    tensors=EMBEDDINGS + NORMS + INTERLEAVED_ATTENTION + MLP + _BIASES,
    constants={"hidden_act": "silu"},
    scalings=("linear", "yarn", "llama3"),
)
