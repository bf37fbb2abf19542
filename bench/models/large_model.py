"""A model of the shape of Qwen2.5-1.5B (28 layers, 3.1 GB of bf16) with weights that mean nothing, as a Hugging Face directory.

Written as it is made, from 64 MB of random values cut at changing places; kept in .bench/ for the next run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np

__all__ = ["large_model"]

LAYERS, HIDDEN, FFN, KV, VOCABULARY = 28, 1536, 8960, 256, 151_936

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        for name, rows in (("q", HIDDEN), ("k", KV), ("v", KV)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, HIDDEN)
            yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (FFN, HIDDEN)
        yield at + "mlp.up_proj.weight", (FFN, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, FFN)
    yield "model.norm.weight", (HIDDEN,)


def large_model(folder: Path = Path(".bench/qwen2.5-1.5b-shaped")) -> Path:
    """The directory, made if it is not there; its config.json is written last."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in _shapes():
        end = offset + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0)
    values = (random.standard_normal(32 << 20, np.float32) * 0.02).astype(ml_dtypes.bfloat16).view(np.uint8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while offset:
            start = 2 * int(random.integers(0, 1 << 20))
            piece = values[start : start + min(offset, len(values) - start)]
            file.write(piece)
            offset -= len(piece)
        file.flush()
        os.fsync(file.fileno())  # only clean pages can be dropped from the cache
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    return folder
