"""Which layers mistral.rs quantizes in a model, in the order that numbers them in UQFF 0.x: the output head, then those of each
layer in turn.

The order is that of the model's code in mistral.rs and stands in no file, so a model of another type has no names here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from flyweight.foundation.expert_names import expert_name

HEAD, EMBEDDING = "lm_head", "model.embed_tokens"

_MOST, _MOST_LAYERS = 100_000, 1000
"""Modules, twice those of the largest model that is known; layers, several times those of the deepest."""
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION = (*_QKV, "self_attn.o_proj")
_GATED = ("gate_proj", "up_proj", "down_proj")

Settings = Mapping[str, Any]
Modules = Callable[[Settings, int], Iterator[str]]
"""The modules of a layer, given the settings of the model and the number of the layer."""


def layer_modules(config: Settings) -> list[str] | None:
    """The modules of a model, in order; None where its type is not known or its settings make no sense."""
    kind, layers = config.get("model_type"), config.get("num_hidden_layers")
    modules = _MODULES.get(kind) if isinstance(kind, str) else None
    if modules is None or type(layers) is not int or not 0 <= layers <= _MOST_LAYERS:
        return None
    names = (f"model.layers.{layer}.{module}" for layer in range(layers) for module in modules(config, layer))
    found = [HEAD, *islice(names, _MOST)]
    return found if len(found) <= _MOST else None


def stacked(module: str) -> str:
    """What 1.x calls a module: the experts of a layer are one there, and their matrices have the same names in all models."""
    found = expert_name(f"{module}.weight")
    return f"{found.path}.{found.matrix}" if found else module


def _plain(*modules: str) -> Modules:
    return lambda _, __: iter(modules)


def _gated(path: str) -> Iterator[str]:
    return (f"{path}.{part}" for part in _GATED)


def _experts(config: Settings, count: str, path: str, parts: tuple[str, ...]) -> Iterator[str]:
    return (f"{path}.{expert}.{part}" for expert in range(_number(config, count)) for part in parts)


def _mixture(config: Settings, _: int, *, router: tuple[str, ...] = ()) -> Iterator[str]:
    yield from (*_ATTENTION, *router)
    yield from _experts(config, "num_local_experts", "block_sparse_moe.experts", ("w1", "w2", "w3"))


def _qwen3_moe(config: Settings, layer: int) -> Iterator[str]:
    yield from _ATTENTION
    plain = config.get("mlp_only_layers")
    if (isinstance(plain, list) and layer in plain[:_MOST_LAYERS]) or (layer + 1) % max(
        _number(config, "decoder_sparse_step"), 1
    ):
        yield from _gated("mlp")
    else:
        yield from _experts(config, "num_experts", "mlp.experts", _GATED)


def _deepseek(config: Settings, layer: int) -> Iterator[str]:
    low_rank = config.get("q_lora_rank") is not None
    yield from (f"self_attn.{name}" for name in (("q_a_proj", "q_b_proj") if low_rank else ("q_proj",)))
    yield from (f"self_attn.{name}" for name in ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj"))
    every = max(_number(config, "moe_layer_freq"), 1)
    if not _number(config, "n_routed_experts") or layer < _number(config, "first_k_dense_replace") or layer % every:
        yield from _gated("mlp")
        return
    yield from _experts(config, "n_routed_experts", "mlp.experts", _GATED)
    if _number(config, "n_shared_experts"):
        yield from _gated("mlp.shared_experts")


def _number(config: Settings, key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and 0 < value <= _MOST else 0


_LLAMA = _plain(*_ATTENTION, *_gated("mlp"))
_MODULES: Mapping[str, Modules] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"), _LLAMA),
    "phi3": _plain("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"),
    "phi": _plain(*_QKV, "self_attn.dense", "mlp.fc1", "mlp.fc2"),
    "starcoder2": _plain(*_ATTENTION, "mlp.c_fc", "mlp.c_proj"),
    "mixtral": partial(_mixture, router=("block_sparse_moe.gate",)),
    "phimoe": _mixture,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
"""By `model_type`."""
