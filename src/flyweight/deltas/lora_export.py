"""A delta as a LoRA adapter that PEFT loads.

Products of low rank become the factors of linear layers and embeddings, as they are stored. A module that changed otherwise is
stored whole (`modules_to_save`). What PEFT cannot load, such as a new or a resized tensor, is refused, with a list of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flyweight.containers.container import Image
from flyweight.containers.safetensors import build_image, holds
from flyweight.deltas.changes import Change, Delta
from flyweight.deltas.kind import Array, StoredArray
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta, pieces_of
from flyweight.deltas.lora import FACTOR_TYPES, PREFIX, Transposed, is_plain_name
from flyweight.deltas.recognition import ADAPTER_WEIGHTS
from flyweight.foundation import strict_json
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW, TensorSpec

_DTYPES = {stored: dtype for dtype, stored in FACTOR_TYPES.items()}
_LISTED = 8


class AdapterModel(NamedTuple):
    """The base and what the adapter is loaded for, as adapter_config.json has it."""

    base_name: str = ""
    """Where the base is, or its name."""
    task_type: str | None = None
    """PEFT's name for what the model does, such as CAUSAL_LM."""
    is_tied: bool = False
    """Whether the output layer is the embedding (`tie_word_embeddings`): PEFT would then change one of them only."""
    fan_in_fan_out: bool = False
    """Whether linear layers are stored as (in, out), as those of GPT-2 are."""


class Factor(NamedTuple):
    """A stored factor that becomes a tensor of the adapter."""

    spec: TensorSpec
    array: StoredArray

    def pieces(self) -> Iterator[Array]:
        return pieces_of(self.array)


class Adapter(NamedTuple):
    """An adapter to be written: adapter_config.json, and the tensors of adapter_model.safetensors by their keys there."""

    config: bytes
    factors: Mapping[str, Factor]
    whole: Mapping[str, Entry]
    """The tensors of the result that are stored as they are."""
    ranks: dict[str, int]
    """The modules that have factors, and their rank."""

    def place(self) -> tuple[Image, dict[str, Extent]]:
        """The bytes around the tensors of adapter_model.safetensors, and where each tensor goes."""
        factors = {key: factor.spec for key, factor in self.factors.items()}
        return build_image(ADAPTER_WEIGHTS, factors | {key: entry.spec for key, entry in self.whole.items()}, {"format": "pt"})


def plan_adapter(delta: Delta, base: Mapping[str, Entry], result: Mapping[str, Entry], model: AdapterModel) -> Adapter:
    """What makes `result` of `base`, for PEFT. UnsupportedError with a list of what it could not load."""
    products, others = _sorted(delta)
    modules = _modules(result)
    saved = list(dict.fromkeys(name.rpartition(".")[0] for name in others))
    refused = {name: "is removed" for name in base if name not in result}
    for name in others:
        if reason := _reason_to_refuse(name, base, result, modules, model):
            refused[name] = reason
    for name in products:
        if model.is_tied and _is_embedding(name):
            refused[name] = "is an embedding that is the output layer too"
    products = {name: kind for name, kind in products.items() if name.rpartition(".")[0] not in saved}
    if refused:
        listed = "; ".join(f"'{name}' {reason}" for name, reason in list(refused.items())[:_LISTED])
        more = f", and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
        raise UnsupportedError(
            f"{len(refused)} tensors cannot be in a LoRA adapter: {listed}{more}", code="E_ADAPTER",
            hint="apply the delta instead, and keep the whole model",
        )  # fmt: skip
    if not products:
        raise UnsupportedError(
            "no tensor of the delta is a product of low rank, as LoRA needs", code="E_ADAPTER",
            hint="make the delta with the strategy 'lowrank'",
        )  # fmt: skip
    factors = {key: factor for name, kind in products.items() for key, factor in _factors(name, kind, model)}
    whole = {PREFIX + name: result[name] for module in saved for name in modules[module]}
    ranks = {name.removesuffix(".weight"): kind.rank for name, kind in products.items()}
    return Adapter(_config(products, saved, model), factors, whole, ranks)


def _sorted(delta: Delta) -> tuple[dict[str, LowRankDelta], list[str]]:
    """The tensors that change by a product that LoRA has, and those that change otherwise."""
    products, others = {}, []
    for name, change in delta.changes.items():
        kind = change.parts.get("data")
        if isinstance(kind, LowRankDelta) and change.parent == name:
            if kind.rank and _is_weight(change):
                products[name] = kind
            elif kind.rank:
                others.append(name)
        elif change.parts or change.parent != name:
            others.append(name)
    return products, others


def _is_weight(change: Change) -> bool:
    return len(change.spec.shape) == 2 and change.name.endswith(".weight") and is_plain_name(change.name)


def _is_embedding(name: str) -> bool:
    """Whether a weight is that of an embedding, which PEFT transposes: its name tells, in every family there is."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    return "embed" in module or module in ("wte", "wpe")


def _modules(names: Mapping[str, Entry]) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    return modules


def _reason_to_refuse(
    name: str, base: Mapping[str, Entry], result: Mapping[str, Entry], modules: Mapping[str, list[str]], model: AdapterModel
) -> str:
    """Why PEFT would not load a tensor as a part of a module that is stored whole; empty if it would."""
    module = name.rpartition(".")[0]
    if name not in base:
        return "is new"
    if base[name].spec.shape != result[name].spec.shape:
        return "has another shape"
    if model.is_tied and _is_embedding(name):
        return "is an embedding that is the output layer too"
    if any(result[other].codec != RAW or not holds(result[other].spec) for other in modules[module]):
        return "is not stored as plain numbers"
    if not module or not is_plain_name(name):
        return "belongs to no module with a plain name"
    if any(other != module and other.endswith(module) for other in modules):
        return f"belongs to a module that PEFT would take for others whose names end with '{module}', too"
    return ""


def _factors(name: str, kind: LowRankDelta, model: AdapterModel) -> Iterator[tuple[str, Factor]]:
    up, down = kind.arrays["up"], kind.arrays["down"]
    rows, columns, rank = kind.spec.rows, kind.spec.columns, kind.rank
    key = PREFIX + name.removesuffix(".weight")
    embedding = _is_embedding(name)
    a, b = (
        (f"{key}.lora_embedding_A", f"{key}.lora_embedding_B")
        if embedding
        else (f"{key}.lora_A.weight", f"{key}.lora_B.weight")
    )
    if embedding or model.fan_in_fan_out:
        yield a, Factor(TensorSpec((rank, rows), _DTYPES[up.dtype.name]), Transposed(up, rows, rank))
        yield b, Factor(TensorSpec((columns, rank), _DTYPES[down.dtype.name]), Transposed(down, rank, columns))
    else:
        yield a, Factor(TensorSpec((rank, columns), _DTYPES[down.dtype.name]), down)
        yield b, Factor(TensorSpec((rows, rank), _DTYPES[up.dtype.name]), up)


def _config(products: Mapping[str, LowRankDelta], saved: list[str], model: AdapterModel) -> bytes:
    """adapter_config.json: the greatest rank is `r`; what differs from it and its alpha is in patterns."""
    greatest = max(products.values(), key=lambda kind: kind.rank)
    alpha = greatest.scale * greatest.rank
    named = {name.removesuffix(".weight"): kind for name, kind in products.items()}
    alphas = {f"^{module}": kind.scale * kind.rank for module, kind in named.items()}
    config = {
        "peft_type": "LORA",
        "task_type": model.task_type,
        "base_model_name_or_path": model.base_name,
        "inference_mode": True,
        "r": greatest.rank,
        "lora_alpha": alpha,
        "rank_pattern": {f"^{module}": kind.rank for module, kind in named.items() if kind.rank != greatest.rank},
        "alpha_pattern": {pattern: value for pattern, value in alphas.items() if value != alpha},
        "target_modules": list(named),
        "modules_to_save": saved or None,
        "bias": "none",
        "fan_in_fan_out": model.fan_in_fan_out,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
    }
    return strict_json.dumps(config, indent=2) + b"\n"
