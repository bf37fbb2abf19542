"""Hostile MLX directories: a config.json and triples that do not tell the same story."""

from __future__ import annotations

import json
from typing import Any

from support.fuzz_cases import Case
from support.raw_files import safetensors_file, tensor_json

INDEX = "model.safetensors.index.json"
SIZES = {"U32": 4, "I32": 4, "F32": 4, "F16": 2, "U8": 1}
TRIPLE: dict[str, tuple[str, list[int]]] = {
    "a.weight": ("U32", [2, 16]),
    "a.scales": ("F16", [2, 2]),
    "a.biases": ("F16", [2, 2]),
}
GOOD = {"group_size": 64, "bits": 4}


def weights(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None = None) -> bytes:
    table: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        nbytes = SIZES[dtype]
        for dim in shape:
            nbytes *= dim
        table[name] = tensor_json(dtype, shape, at, at + nbytes)
        at += nbytes
    return safetensors_file(table, bytes(at))


def directory(config: Any, code: str, tensors: dict[str, tuple[str, list[int]]] | None = None, exit_code: int = 3) -> Case:
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    files = {"config.json": text, "model.safetensors": weights(TRIPLE if tensors is None else tensors)}
    return Case(files, code, is_directory=True, exit_code=exit_code)


def says(quantization: Any, code: str = "E_QUANTIZATION", **more: Any) -> Case:
    """The good triple under this `quantization`."""
    return directory({"model_type": "llama", "quantization": quantization}, code, **more)


def holds(change: dict[str, tuple[str, list[int]] | None], code: str = "E_TRIPLE") -> Case:
    """The good settings over the triple with some pieces replaced, added or (None) missing."""
    tensors = {name: value for name, value in (TRIPLE | change).items() if value is not None}
    return directory({"quantization": GOOD}, code, tensors)


def described(parts: dict[str, str], codec: str = "q4_0") -> Case:
    """The good triple, with a description that makes something else of its pieces."""
    about = {"x": {"shape": [2, 128], "dtype": "f32", "codec": {"name": codec, "params": {}}, "parts": parts}}
    files = {
        "config.json": json.dumps({"quantization": GOOD}).encode(),
        "model.safetensors": weights(TRIPLE, {"flyweight.tensors": json.dumps(about)}),
    }
    return Case(files, "E_DESCRIPTION", is_directory=True, exit_code=4)


HOSTILE: dict[str, Case] = {
    # the settings
    "no bits": says({"group_size": 64}),
    "no group size": says({"bits": 4}),
    "bits 0": says(GOOD | {"bits": 0}),
    "bits 7": says(GOOD | {"bits": 7}),
    "bits 33": says(GOOD | {"bits": 33}),
    "bits true": says(GOOD | {"bits": True}),
    "bits as text": says(GOOD | {"bits": "4"}),
    "bits 4.0": says(GOOD | {"bits": 4.0}),
    "bits null": says(GOOD | {"bits": None}),
    "bits a list": says(GOOD | {"bits": [4]}),
    "group size 0": says(GOOD | {"group_size": 0}),
    "group size -1": says(GOOD | {"group_size": -1}),
    "group size 2^40": says(GOOD | {"group_size": 2**40}),
    "group size 10^400": says(GOOD | {"group_size": 10**400}),
    "quantization a list": says([64, 4]),
    "quantization text": says("4bit"),
    "quantization a number": says(4),
    "quantization false": says(False),
    # per module
    "module set to a list": says(GOOD | {"a": [4, 64]}),
    "module set to a number": says(GOOD | {"a": 4}),
    "module set to null": says(GOOD | {"a": None}),
    "module with bits 33": says(GOOD | {"a": {"group_size": 64, "bits": 33}}),
    "module without a group size": says(GOOD | {"a": {"bits": 4}}),
    "module with an unknown setting": says(GOOD | {"a": GOOD | {"global_scale": True}}, exit_code=4),
    "module that is no module, malformed all the same": says(GOOD | {"ghost": {"bits": 0, "group_size": 64}}),
    "module said to be dense, but packed": says(GOOD | {"a": False}, "E_TRIPLE"),
    "module said to have other bits": says(GOOD | {"a": {"group_size": 64, "bits": 8}}, "E_TRIPLE"),
    "module said to be packed, but dense": directory(
        {"quantization": GOOD | {"b": GOOD}}, "E_TRIPLE", TRIPLE | {"b.weight": ("F16", [2, 128])}
    ),
    # config.json
    "config not JSON": directory(b'{"quantization": ', "E_JSON"),
    "config with quantization twice": directory(
        b'{"quantization": {"bits": 4, "group_size": 64}, "quantization": {"bits": 8, "group_size": 64}}', "E_JSON_DUPLICATE"
    ),
    "config with bits twice": directory(b'{"quantization": {"bits": 4, "bits": 8, "group_size": 64}}', "E_JSON_DUPLICATE"),
    "config nested 200,000 deep": directory(b'{"quantization": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "E_JSON_DEPTH"),
    "config with NaN bits": directory(b'{"quantization": {"bits": NaN, "group_size": 64}}', "E_JSON"),
    "config not UTF-8": directory(b'{"quantization": {"bits": 4, "group_size": 64, "\xff": 1}}', "E_UTF8"),
    # the triples
    "no biases": holds({"a.biases": None}),
    "no scales": holds({"a.scales": None}),
    "no weight": holds({"a.weight": None}),
    "only a packed weight": holds({"a.scales": None, "a.biases": None}),
    "scales of fewer rows": holds({"a.scales": ("F16", [1, 2])}),
    "scales and biases of fewer rows": holds({"a.scales": ("F16", [1, 2]), "a.biases": ("F16", [1, 2])}),
    "scales and biases of fewer groups": holds({"a.scales": ("F16", [2, 1]), "a.biases": ("F16", [2, 1])}),
    "scales and biases without columns": holds({"a.scales": ("F16", [2, 0]), "a.biases": ("F16", [2, 0])}),
    "scales and biases of another type": holds({"a.scales": ("F32", [2, 2])}),
    "scales of bytes": holds({"a.scales": ("U8", [2, 2]), "a.biases": ("U8", [2, 2])}),
    "weight not u32": holds({"a.weight": ("I32", [2, 16])}),
    "weight already dense": holds({"a.weight": ("F16", [2, 128])}),
    "weight a vector": holds({"a.weight": ("U32", [16]), "a.scales": ("F16", [2]), "a.biases": ("F16", [2])}),
    "weight a scalar": holds({"a.weight": ("U32", []), "a.scales": ("F16", []), "a.biases": ("F16", [])}),
    "weight of another rank": holds({"a.weight": ("U32", [1, 2, 16])}),
    "no rows, and more columns than there are numbers": holds(
        {"a.weight": ("U32", [0, 2**59]), "a.scales": ("F16", [0, 2**58]), "a.biases": ("F16", [0, 2**58])}, "E_SHAPE"
    ),
    "piece described as another codec": described({"blocks": "a.weight"}),
    "triple described as one tensor": described({"codes": "a.weight", "scale": "a.scales", "bias": "a.biases"}, "affine"),
    "triple without settings": directory({"quantization": GOOD | {"a": False, "b": True}}, "E_TRIPLE"),
}
