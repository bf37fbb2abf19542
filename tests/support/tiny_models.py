"""Tiny models of every family: configurations, tensor names and shapes, written down rather than derived."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from flyweight import models
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.models import Translation

_BASE = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 20,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_GEMMA = _BASE | {
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "head_dim": 4,
    "query_pre_attn_scalar": 4,
    "sliding_window": 16,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "mistral": _BASE | {"head_dim": 4, "sliding_window": None},
    "qwen2": _BASE,
    "qwen3": _BASE | {"head_dim": 4},
    "gemma2": _GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": _GEMMA | {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
    "phi3": _BASE | {"original_max_position_embeddings": 64, "sliding_window": 32},
}

_ATTENTION = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
}
_QK_NORMS = {"self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight"}
_MLP = {
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_NORMS = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight"}
_GEMMA_NORMS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
LAYER_NAMES: dict[str, dict[str, str]] = {
    "llama": _NORMS | _ATTENTION | _MLP,
    "mistral": _NORMS | _ATTENTION | _MLP,
    "qwen2": _NORMS
    | _ATTENTION
    | _MLP
    | {
        "self_attn.q_proj.bias": "attn_q.bias",
        "self_attn.k_proj.bias": "attn_k.bias",
        "self_attn.v_proj.bias": "attn_v.bias",
    },
    "qwen3": _NORMS | _ATTENTION | _QK_NORMS | _MLP,
    "gemma2": _GEMMA_NORMS | _ATTENTION | _MLP,
    "gemma3_text": _GEMMA_NORMS | _ATTENTION | _QK_NORMS | _MLP,
    "phi3": _NORMS
    | {
        "self_attn.qkv_proj.weight": "attn_qkv.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "mlp.gate_up_proj.weight": "ffn_up.weight",
        "mlp.down_proj.weight": "ffn_down.weight",
    },
}
SHAPES: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (8,),
    "post_attention_layernorm.weight": (8,),
    "pre_feedforward_layernorm.weight": (8,),
    "post_feedforward_layernorm.weight": (8,),
    "self_attn.q_proj.weight": (8, 8),
    "self_attn.k_proj.weight": (8, 8),
    "self_attn.v_proj.weight": (8, 8),
    "self_attn.o_proj.weight": (8, 8),
    "self_attn.q_proj.bias": (8,),
    "self_attn.k_proj.bias": (8,),
    "self_attn.v_proj.bias": (8,),
    "self_attn.q_norm.weight": (4,),
    "self_attn.k_norm.weight": (4,),
    "self_attn.qkv_proj.weight": (24, 8),
    "mlp.gate_proj.weight": (12, 8),
    "mlp.up_proj.weight": (12, 8),
    "mlp.down_proj.weight": (8, 12),
    "mlp.gate_up_proj.weight": (24, 8),
}


def no_read(extent: Extent) -> bytes:
    raise AssertionError(f"nothing should be read from {extent}")


def _entry(name: str, shape: tuple[int, ...]) -> Entry:
    spec = TensorSpec(shape, DType.F32)
    return Entry(name, spec, RAW, {"data": spec})


def hf_manifest(
    model_type: str,
    config: Mapping[str, Any] = {},
    files: Mapping[str, bytes] = {},
) -> Manifest:
    """A checkpoint of one family with the settings of TINY, changed by `config`, and more side files."""
    settings = TINY[model_type] | {"model_type": model_type} | dict(config)
    names = {"model.embed_tokens.weight": (20, 8), "model.norm.weight": (8,)}
    if not settings["tie_word_embeddings"]:
        names["lm_head.weight"] = (20, 8)
    for layer in range(2):
        names |= {f"model.layers.{layer}.{name}": SHAPES[name] for name in LAYER_NAMES[model_type]}
    entries = {name: _entry(name, shape) for name, shape in names.items()}
    return Manifest("hf", entries, {}, {"config.json": json.dumps(settings).encode(), **files}, "hf")


def as_gguf(manifest: Manifest, there: Translation, without: tuple[str, ...] = ()) -> tuple[Manifest, dict[str, bytes]]:
    """What a GGUF file made from a translation would parse as, and the bytes of its added tensors."""
    entries = {r.name: Entry(r.name, e.spec, e.codec, e.parts) for n, r in there.tensors.items() for e in [manifest.entries[n]]}
    added: dict[str, bytes] = {}
    for name, array in there.added.items():
        spec = TensorSpec(array.shape, DType.F32)
        added[name] = np.ascontiguousarray(array, "<f4").tobytes()
        entries[name] = Entry(name, spec, RAW, {"data": spec}, {"data": Extent(name, 0, array.nbytes)})
    metadata = {key: typed for key, typed in there.metadata.items() if key not in without}
    return Manifest("gguf", entries, metadata, {}, "gguf"), added


def round_trip(manifest: Manifest, without: tuple[str, ...] = ()) -> Translation:
    """HF → GGUF → HF, losing the metadata `without` on the way."""
    gguf, added = as_gguf(manifest, models.translate(manifest, "gguf", no_read), without)
    return models.translate(gguf, "hf", lambda extent: added[extent.file])
