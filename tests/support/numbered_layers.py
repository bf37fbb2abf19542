"""Tensors as a model of UQFF 0.x, which has no place for any but those of an architecture it knows."""

from __future__ import annotations

import json

from flyweight.containers.uqff.layer_order import layer_modules
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, TensorSpec

_PLAIN = TensorSpec((2, 3), DType.F32)


def as_llama(entries: dict[str, Entry]) -> tuple[dict[str, Entry], bytes]:
    """The same tensors, those that are quantized as layers of a Llama, and its config.json. Layers that are left are plain."""
    quantized = [entry for entry in entries.values() if entry.codec != RAW]
    config = {"model_type": "llama", "num_hidden_layers": -(-len(quantized) // 7), "tie_word_embeddings": False}
    named = dict(entries)
    for module in layer_modules(config) or ():
        name = f"{module}.weight"
        old = quantized.pop() if quantized else Entry(name, _PLAIN, RAW, {"data": _PLAIN})
        named.pop(old.name, None)
        named[name] = Entry(name, old.spec, old.codec, old.parts)
    return named, json.dumps(config).encode()
