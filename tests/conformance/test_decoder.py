"""Every family computes what transformers computes in float64, within the rounding of f32.

The bound: a layer has four products one after the other, and the output is one more. Each sums at most `width` terms, so it
errs by at most width · 2^-24 of their sizes; norms between them keep that share from growing with size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from flyweight.checkpoint import open_checkpoint
from flyweight.pipeline import convert
from flyweight.runtime.decoder import Decoder, Settings
from flyweight.runtime.tensors import Streamed, Tensors

BASE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = BASE | {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 16}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + j / 50 for j in range(6)],
    "long_factor": [2.0 + j / 3 for j in range(6)], "original_max_position_embeddings": 64,
}  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", BASE | {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", BASE | {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama-linear": ("Llama", BASE | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}}),
    "llama-llama3": ("Llama", BASE | {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", BASE | {"rope_parameters": YARN}),
    "mistral": ("Mistral", BASE | {"sliding_window": None}),
    "mistral-window": ("Mistral", BASE | {"sliding_window": 24}),
    "qwen2": ("Qwen2", BASE | {"num_key_value_heads": 1}),
    "qwen2-window": ("Qwen2", BASE | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("Qwen3", BASE | {"head_dim": 32}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", GEMMA | {"num_hidden_layers": 7, "tie_word_embeddings": True}),
    "phi3": ("Phi3", BASE | {"sliding_window": 40}),
    "phi3-long": (
        "Phi3",
        BASE | {"rope_parameters": LONG | {"partial_rotary_factor": 0.75}, "original_max_position_embeddings": 64},
    ),
}
TOKENS = np.random.default_rng(7).integers(3, 160, 90)


def reference(name: str, where: Path) -> np.ndarray[Any, Any]:
    """A random model of this kind, saved; its logits in float64."""
    kind, settings = MODELS[name]
    config = getattr(transformers, f"{kind}{'Text' if kind == 'Gemma3' else ''}Config")(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for key, weights in model.named_parameters():
            weights.normal_(0.5 if key.endswith("norm.weight") else 0.0, 0.2 if weights.ndim == 1 else 0.15)
    model.save_pretrained(where)
    with torch.no_grad():
        logits = model.double()(torch.from_numpy(TOKENS)[None]).logits
    return np.asarray(logits[0].numpy())


def bound(decoder: Decoder, logits: np.ndarray[Any, Any]) -> float:
    dims = decoder.config.dims
    width = max(dims.hidden, dims.ffn, dims.size("q"))
    return float((4 * dims.layers + 1) * width * 2.0**-24 * np.abs(logits).max())


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    wanted = reference(name, tmp_path / "hf")
    forms = [tmp_path / "hf"]
    if "window" not in name and name != "gemma3":  # windows and scalars that GGUF has no key for
        convert(tmp_path / "hf", tmp_path / "model.gguf")
        forms.append(tmp_path / "model.gguf")
    for path in forms:
        for kind in (Tensors, Streamed):
            with open_checkpoint(path) as checkpoint:
                decoder = Decoder(kind(checkpoint), 256, Settings(int8=False, threads=2))
                cache = decoder.cache("f32")
                got = [decoder.forward(TOKENS[:50], cache, every=True)]
                got += [decoder.forward([token], cache) for token in TOKENS[50:]]
                error = np.abs(np.concatenate(got) - wanted).max()
                assert error <= bound(decoder, wanted), f"{path.name} {kind.__name__}"
