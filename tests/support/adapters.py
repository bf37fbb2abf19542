"""LoRA adapters as PEFT saves them, written byte by byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from flyweight.foundation.dtypes import DType
from flyweight.sources import MemoryBundle
from support.raw_files import safetensors_file, tensor_json

Array = np.ndarray[Any, Any]
PREFIX = "base_model.model."
Q_PROJ = "model.layers.0.self_attn.q_proj"
CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none", "fan_in_fan_out": False,
    "base_model_name_or_path": "some/model", "modules_to_save": None, "lora_dropout": 0.1, "inference_mode": True,
    "init_lora_weights": True, "use_rslora": False, "use_dora": False, "rank_pattern": {}, "alpha_pattern": {},
    "a_field_of_the_future": {"x": 1},
}  # fmt: skip
_LABELS = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", DType.BF16.numpy: "BF16", np.dtype("<f8"): "F64"}


def adapter_weights(tensors: Mapping[str, Array]) -> bytes:
    table, data = {}, b""
    for name, array in tensors.items():
        table[name] = tensor_json(_LABELS[array.dtype], list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return safetensors_file(table, data)


def adapter_bundle(tensors: Mapping[str, Array] | bytes, config: Any = None, **settings: Any) -> MemoryBundle:
    weights = tensors if isinstance(tensors, bytes) else adapter_weights(tensors)
    text = json.dumps({**CONFIG, **settings}).encode() if config is None else config
    return MemoryBundle({"adapter_config.json": text, "adapter_model.safetensors": weights}, "adapter")


def factor_pair(rows: int, columns: int, rank: int = 4, dtype: Any = np.float32, seed: int = 0) -> tuple[Array, Array]:
    """A (rank, columns) and B (rows, rank)."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((rank, columns)), rng.standard_normal((rows, rank))
    return a.astype(dtype), b.astype(dtype)


def linear(a: Array, b: Array, module: str = Q_PROJ, infix: str = "") -> dict[str, Array]:
    return {f"{PREFIX}{module}.lora_A{infix}.weight": a, f"{PREFIX}{module}.lora_B{infix}.weight": b}


def embedding(a: Array, b: Array, module: str = "model.embed_tokens", infix: str = "") -> dict[str, Array]:
    return {f"{PREFIX}{module}.lora_embedding_A{infix}": a, f"{PREFIX}{module}.lora_embedding_B{infix}": b}
