"""Gemma 2: four norms a layer (stored as 1 + w), capped logits, every other layer with a sliding window."""

from flyweight.models.family import ATTENTION, COMMON_FIELDS, EMBEDDINGS, MLP, Family, Field, Graph, TensorRule, Window

__all__ = ["FAMILY", "GEMMA_GRAPH", "GEMMA_TENSORS"]

_embedding, _final_norm, _output = EMBEDDINGS

GEMMA_TENSORS = (
    _embedding,
    _final_norm._replace(add=1.0),
    _output,
    TensorRule("model.layers.{i}.input_layernorm.weight", "blk.{i}.attn_norm.weight", ("hidden",), add=1.0),
    TensorRule("model.layers.{i}.post_attention_layernorm.weight", "blk.{i}.post_attention_norm.weight", ("hidden",), add=1.0),
    TensorRule("model.layers.{i}.pre_feedforward_layernorm.weight", "blk.{i}.ffn_norm.weight", ("hidden",), add=1.0),
    TensorRule("model.layers.{i}.post_feedforward_layernorm.weight", "blk.{i}.post_ffw_norm.weight", ("hidden",), add=1.0),
    *ATTENTION,
    *MLP,
)

GEMMA_GRAPH = Graph(
    activation="gelu_tanh",
    scaled_embedding=True,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)

FAMILY = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    gguf="gemma2",
    fields=(
        *COMMON_FIELDS,
        Field("sliding_window", "attention.sliding_window", default=4096),
        Field("attn_logit_softcapping", "attn_logit_softcapping", "f32", default=50.0, always_on=True),
        Field("final_logit_softcapping", "final_logit_softcapping", "f32", default=30.0, always_on=True),
    ),
    tensors=GEMMA_TENSORS,
    constants={"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
    tied=True,
    head_dim=256,
    window=Window(period=2),
    wide_layers=46,
    scalings=("linear",),
    graph=GEMMA_GRAPH,
)
