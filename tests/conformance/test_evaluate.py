"""Perplexity and KL divergence of tiny models equal what transformers' logits in float64 give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from flyweight.evaluate import evaluate, predictor, windows_of
from flyweight.runtime import open_model

CONFIG: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "pad_token_id": None,
}  # fmt: skip
TOKENS = np.random.default_rng(7).integers(3, 160, 5 * 200 + 50)


def made(where: Path, noise: float) -> Any:
    """A random model, saved; and log-probabilities of every window, float64 (windows, tokens, vocabulary)."""
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).float().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(0.5 if weights.ndim == 1 else 0.0, 0.15)
        torch.manual_seed(4)
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights), alpha=noise)
    model.save_pretrained(where)
    windows = torch.from_numpy(TOKENS[:1000].reshape(5, 200))
    with torch.no_grad():
        return torch.log_softmax(model.double()(windows).logits, -1)[:, :-1]


def test_perplexity_and_divergence_equal_torch(tmp_path: Path) -> None:
    theirs, ours = made(tmp_path / "reference", 0.0), made(tmp_path / "model", 0.01)
    following = torch.from_numpy(TOKENS[:1000].reshape(5, 200))[:, 1:, None]
    perplexity = [float(torch.exp(-log_p.gather(2, following).mean())) for log_p in (ours, theirs)]
    divergence = torch.nn.functional.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1).numpy()
    same = (ours.argmax(-1) == theirs.argmax(-1)).double().mean()

    settings: dict[str, Any] = {"context": 200, "kv": "f32", "int8": False}
    with open_model(tmp_path / "model", **settings) as model, open_model(tmp_path / "reference", **settings) as reference:
        found = evaluate(windows_of(TOKENS, 200), predictor(model), predictor(reference))
    figures = found.figures()
    assert figures["perplexity"].value == pytest.approx(perplexity[0], rel=1e-4)
    assert figures["reference_perplexity"].value == pytest.approx(perplexity[1], rel=1e-4)
    assert figures["perplexity_change"].value == pytest.approx(perplexity[0] - perplexity[1], rel=1e-3)
    assert figures["kl_mean"].value == pytest.approx(divergence.mean(), rel=1e-4)
    assert figures["kl_median"].value == pytest.approx(np.median(divergence), rel=1e-3)
    assert figures["same_top"].value == pytest.approx(float(same), abs=1e-3)
