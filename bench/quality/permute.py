"""The same function with its channels in another order: a checkpoint whose old quantization no longer shows.

    python -m bench.quality.permute MODEL OUT [f32|bf16]        a llama or qwen2 checkpoint → a Hugging Face directory

A model that exists only as decoded 4-bit groups makes a quantizer with the same groups look perfect. Reordering the residual
channels everywhere, the MLP channels of each layer and the value channels of each head leaves every logit as it was but for
the rounding of sums, and mixes values of 32 grids in each group. Queries and keys stay: rotary positions tie their channels.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import flyweight
from flyweight.foundation.dtypes import DType

Array = np.ndarray[Any, Any]


class Orders:
    """Where each channel comes from. Seeds are fixed: the same model in, the same bytes out."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        heads, shared = config["num_attention_heads"], config["num_attention_heads"] // config["num_key_value_heads"]
        self.residual = np.random.default_rng(0).permutation(config["hidden_size"])
        self.head = config.get("head_dim") or config["hidden_size"] // heads
        self.ffn, self.kv_heads, self.groups = config["intermediate_size"], heads // shared, np.arange(heads) // shared

    def of_layer(self, layer: int) -> tuple[Array, Array, Array]:
        """MLP channels, rows of V, columns of O."""
        rng = np.random.default_rng(layer + 1)
        hidden = rng.permutation(self.ffn)
        value = np.stack([rng.permutation(self.head) for _ in range(self.kv_heads)])
        heads = np.arange(len(self.groups))[:, None] * self.head
        return hidden, (value + np.arange(self.kv_heads)[:, None] * self.head).ravel(), (value[self.groups] + heads).ravel()

    def apply(self, name: str, array: Array) -> Array:
        """One tensor, by its Hugging Face name."""
        residual, kind = self.residual, name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1]
        hidden, value, output = self.of_layer(int(name.split(".")[2]) if ".layers." in name else 0)
        everything = slice(None)
        rows, columns = {
            "q_proj": (everything, residual),
            "k_proj": (everything, residual),
            "v_proj": (value, residual),
            "o_proj": (residual, output),
            "gate_proj": (hidden, residual),
            "up_proj": (hidden, residual),
            "down_proj": (residual, hidden),
            "embed_tokens": (everything, residual),
            "lm_head": (everything, residual),
        }.get(kind, (residual, None))
        return array[rows] if columns is None or array.ndim == 1 else array[rows][:, columns]


def write_safetensors(path: Path, dtype: DType, shapes: Mapping[str, tuple[int, ...]], arrays: Iterable[Array]) -> None:
    """Arrays in the order of their shapes, one in memory at a time."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        end = at + dtype.itemsize * int(np.prod(shape))
        header[name] = {"dtype": dtype.label.upper(), "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            file.write(np.ascontiguousarray(array, dtype.numpy).view(np.uint8).data)


def permute(model: Path, out: Path, dtype: DType = DType.F32) -> None:
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        plain = Path(folder) / "plain"
        flyweight.convert(model, plain, to="hf", dtype=dtype.label)
        orders = Orders(json.loads((plain / "config.json").read_text("utf-8")))
        made = Path(folder) / "made"
        made.mkdir()
        with flyweight.open(plain) as checkpoint:
            shapes = {name: entry.spec.shape for name, entry in checkpoint.manifest.entries.items()}
            arrays = (orders.apply(name, checkpoint[name]) for name in shapes)
            write_safetensors(made / "model.safetensors", dtype, shapes, arrays)
        for file in plain.iterdir():
            if ".safetensors" not in file.name:
                shutil.copy(file, made)
        made.rename(out)


def permuted_beside(model: Path, name: str = "permuted", dtype: DType = DType.F32) -> Path:
    """The permuted form of a model, in the same folder; made when it is first wanted."""
    out = model.parent / name
    if not out.exists():
        permute(model, out, dtype)
    return out


if __name__ == "__main__":
    permute(Path(sys.argv[1]), Path(sys.argv[2]), *map(DType.parse, sys.argv[3:]))
