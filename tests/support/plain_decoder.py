"""A decoder in plain float64 NumPy, written from the papers and not from the code under test: settings are its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def plain_logits(
    tensors: Mapping[str, Array], tokens: Sequence[int], *, heads: int, windows: Sequence[int], scalar: float, eps: float,
    gemma: bool = False, activation: Any = silu, caps: tuple[float | None, float | None] = (None, None), theta: float = 10000.0,
    rounded: Callable[[Array], Array] = lambda x: x,
) -> Array:  # fmt: skip
    """Logits after each token, (n, vocab). `windows`: how many positions each layer sees; `caps`: of scores and of logits;
    `rounded`: what a linear layer is given."""
    held = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    n = len(tokens)
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (held[name] + gemma)

    def linear(x: Array, name: str) -> Array:
        return rounded(x) @ held[name + ".weight"].T + held.get(name + ".bias", 0)

    def capped(x: Array, cap: float | None) -> Array:
        return x if cap is None else cap * np.tanh(x / cap)

    def turned(x: Array) -> Array:
        """Of (n, heads, d), pairs j and j + d/2 turned by position · θ^(−2j/d)."""
        d = x.shape[-1]
        angle = np.arange(n)[:, None, None] * theta ** (-np.arange(0, d, 2) / d)
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    embedding = held["model.embed_tokens.weight"]
    x = embedding[list(tokens)] * (np.sqrt(embedding.shape[1]) if gemma else 1)
    for index, window in enumerate(windows):
        at = f"model.layers.{index}."
        y = norm(x, at + "input_layernorm.weight")
        q, k, v = (linear(y, f"{at}self_attn.{name}_proj") for name in "qkv")
        q = turned(q.reshape(n, heads, -1))
        k, v = (z.reshape(n, -1, q.shape[-1]) for z in (k, v))
        k, v = (np.repeat(z, heads // z.shape[1], axis=1) for z in (turned(k), v))
        scores = capped(np.einsum("ihd,jhd->hij", q, k) / np.sqrt(scalar), caps[0])
        scores[:, (distance < 0) | (distance >= (window or n))] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v).reshape(n, -1)
        change = linear(mixed, at + "self_attn.o_proj")
        x = x + (norm(change, at + "post_attention_layernorm.weight") if gemma else change)
        y = norm(x, at + ("pre_feedforward_layernorm" if gemma else "post_attention_layernorm") + ".weight")
        change = linear(activation(linear(y, at + "mlp.gate_proj")) * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
        x = x + (norm(change, at + "post_feedforward_layernorm.weight") if gemma else change)
    output = held.get("lm_head.weight", embedding)
    return capped(rounded(norm(x, "model.norm.weight")) @ output.T, caps[1])
