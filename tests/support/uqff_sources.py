"""Small Hugging Face models of random weights for mistral.rs to quantize, and its questions about them.

The vocabulary is letters, so that what a model of random weights says is text that can be compared.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from support.tokenizers import added
from support.toys import safetensors_bytes

PROMPT = "the quick brown fox"
TOKENS = ["<s>", "</s>", "<unk>", *string.ascii_lowercase, "Ġ", ".", ","]

_SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": len(TOKENS),
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "sliding_window": 256,
    "max_window_layers": 1,
    "use_sliding_window": False,
}
_MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 2,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "intermediate_size": 32,
}
# Of this one alone mistral.rs takes the width of a head from the configuration.
_MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, "intermediate_size": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "small": _SMALL,
    "wide": _SMALL
    | _MISTRAL
    | {"hidden_size": 256, "num_attention_heads": 2, "tie_word_embeddings": True},  # rows of whole blocks of 256
    "bias": _SMALL | _QWEN2,
    "tied": _SMALL | {"tie_word_embeddings": True},
    "odd": _SMALL | _MISTRAL | {"hidden_size": 24},  # rows that fit no block, or no group of 64
    "experts": _SMALL | _MIXTRAL,
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model, by its name in transformers."""
    hidden, inner, head = (config[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config["model_type"] == "qwen2":
        layer |= {f"self_attn.{name}_proj.bias": (rows,) for name, rows in (("q", queries), ("k", keys), ("v", keys))}
    if config["model_type"] == "mixtral":
        layer["block_sparse_moe.gate.weight"] = (config["num_local_experts"], hidden)
        for expert in range(config["num_local_experts"]):
            for name, shape in (("w1", (inner, hidden)), ("w2", (hidden, inner)), ("w3", (inner, hidden))):
                layer[f"block_sparse_moe.experts.{expert}.{name}.weight"] = shape
    else:
        layer |= {
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        tensors |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    tensors["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = (config["vocab_size"], hidden)
    return tensors


def weights(config: dict[str, Any], seed: int = 17) -> dict[str, np.ndarray]:
    """Random weights under which every token depends on the whole prompt; the same under every version of NumPy."""
    bits, tensors = np.random.PCG64(seed), {}
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    for name, shape in shapes(config).items():
        # The sum of four uniform numbers, with the mean 0 and the variance 1.
        uniform = bits.random_raw(int(np.prod(shape))).view(np.uint16).reshape(*shape, 4) / 2.0**16
        values = (uniform.sum(-1) - 2) * np.sqrt(3)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif name == "model.embed_tokens.weight":
            values *= 2.4 / np.sqrt(shape[-1]) if config["tie_word_embeddings"] else 1.0
        elif name.endswith(".bias"):
            values *= 0.4
        else:
            values *= (3.0 if name == "lm_head.weight" else 1.2) / np.sqrt(shape[-1])
        if name == head:
            values[:3] = 0  # so that no text ends early
        tensors[name] = values.astype(ml_dtypes.bfloat16)
    return tensors


def tokenizer() -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [added(index, TOKENS[index]) for index in range(3)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "unk_token": None, "vocab": {token: at for at, token in enumerate(TOKENS)}, "merges": []},
    }


def write_source(path: Path, config: dict[str, Any], *, dtype: type = ml_dtypes.bfloat16) -> Path:
    """The directory a user would give to `mistralrs quantize` or `flyweight convert`; `dtype` changes no value."""
    path.mkdir(parents=True)
    described = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": config["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    files = {"config.json": config, "tokenizer.json": tokenizer(), "tokenizer_config.json": described}
    for name, value in files.items():
        (path / name).write_text(json.dumps(value, indent=None if name == "tokenizer.json" else 2, ensure_ascii=False), "utf-8")
    (path / "model.safetensors").write_bytes(
        safetensors_bytes({name: values.astype(dtype) for name, values in weights(config).items()})
    )
    return path
