"""Which layers mistral.rs quantizes in a model, in the order that numbers them in UQFF 0.x: the output head, then layer by
layer these.

The order is that of the model's code in mistral.rs and stands in no file, so a model of another type has no names here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

HEAD, EMBEDDING = "lm_head", "model.embed_tokens"

_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_LLAMA = (*_ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_EXPERTS = "num_local_experts"
_MODULES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3"), _LLAMA),
    "phi3": ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"),
    "phi": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense", "mlp.fc1", "mlp.fc2"),
    "starcoder2": (*_ATTENTION, "mlp.c_fc", "mlp.c_proj"),
    "mixtral": (
        *_ATTENTION,
        "block_sparse_moe.gate",
        *(f"block_sparse_moe.experts.{{expert}}.{part}" for part in ("w1", "w2", "w3")),
    ),
}
"""By `model_type`. What has `{expert}` in it comes for every expert in turn."""


def module_count(config: Mapping[str, Any]) -> int | None:
    """How many layers a model of these settings has; None where its type is not known."""
    found = _shape(config)
    if found is None:
        return None
    modules, layers, experts = found
    repeated = sum("{expert}" in module for module in modules)
    return 1 + layers * (len(modules) - repeated + repeated * experts)


def module_names(config: Mapping[str, Any], count: int) -> list[str]:
    """The first `count` layers of a model whose type is known."""
    return list(islice(_modules(config), count))


def _modules(config: Mapping[str, Any]) -> Iterator[str]:
    found = _shape(config)
    if found is None:
        return
    modules, layers, experts = found
    plain = [module for module in modules if "{expert}" not in module]
    repeated = [module for module in modules if "{expert}" in module]
    yield HEAD
    for layer in range(layers):
        yield from (f"model.layers.{layer}.{module}" for module in plain)
        for expert in range(experts if repeated else 0):
            yield from (f"model.layers.{layer}.{module.format(expert=expert)}" for module in repeated)


def _shape(config: Mapping[str, Any]) -> tuple[tuple[str, ...], int, int] | None:
    """The modules of a layer, how many layers there are, and experts in each."""
    kind, layers, experts = (config.get(key) for key in ("model_type", "num_hidden_layers", _EXPERTS))
    modules = _MODULES.get(kind) if isinstance(kind, str) else None
    if modules is None or type(layers) is not int or layers < 0:
        return None
    return modules, layers, experts if type(experts) is int and experts > 0 else 0
