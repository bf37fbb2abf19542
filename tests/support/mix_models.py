"""Models in the shapes of every family, as names and shapes: what decides which type llama-quantize gives a matrix."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple


class MixModel(NamedTuple):
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    tied: bool = False
    vocabulary: int = 64


MIX_MODELS = {
    "smollm2": MixModel("llama", 30, 576, 9, 3, 1536, tied=True),
    "llama 3 8B, narrow": MixModel("llama", 32, 512, 8, 2, 1024),
    "llama 70B, narrow": MixModel("llama", 80, 256, 8, 1, 256),
    "llama 65B, narrow": MixModel("llama", 80, 256, 4, 4, 256),
    "qwen2": MixModel("qwen2", 11, 512, 8, 1, 768),
    "qwen2, tied": MixModel("qwen2", 24, 512, 8, 4, 768, tied=True),
    "qwen3": MixModel("qwen3", 36, 512, 8, 2, 768),
    "gemma2": MixModel("gemma2", 26, 512, 8, 4, 768, tied=True),
    "gemma3": MixModel("gemma3", 18, 640, 4, 1, 2048, tied=True),
    "phi3": MixModel("phi3", 32, 512, 8, 8, 768),
    "phi3, shared keys": MixModel("phi3", 17, 512, 8, 2, 768),
}


def shapes_of(model: MixModel) -> dict[str, tuple[int, ...]]:
    """Every tensor by its name in GGUF."""
    head = model.hidden // model.heads
    keys, hidden, ffn = model.kv_heads * head, model.hidden, model.ffn
    own: dict[str, tuple[int, ...]] = {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    if model.architecture == "phi3":
        own |= {"attn_qkv.weight": (hidden + 2 * keys, hidden), "ffn_up.weight": (2 * ffn, hidden)}
    else:
        own |= {"attn_q.weight": (hidden, hidden), "attn_k.weight": (keys, hidden), "attn_v.weight": (keys, hidden)}
        own |= {"ffn_gate.weight": (ffn, hidden), "ffn_up.weight": (ffn, hidden)}
    own |= {"attn_output.weight": (hidden, hidden), "ffn_down.weight": (hidden, ffn)}
    shapes = {"token_embd.weight": (model.vocabulary, hidden), "output_norm.weight": (hidden,)}
    shapes |= {} if model.tied else {"output.weight": (model.vocabulary, hidden)}
    return shapes | {f"blk.{i}.{name}": shape for i in range(model.layers) for name, shape in own.items()}


def write_model(path: Path, model: MixModel) -> Path:
    """A GGUF file with these names, shapes and settings, whose weights are a hole."""
    text = lambda value: struct.pack("<Q", len(value)) + value.encode()  # noqa: E731
    arch = model.architecture
    numbers = {
        "block_count": model.layers, "context_length": 64, "embedding_length": model.hidden, "feed_forward_length": model.ffn,
        "attention.head_count": model.heads, "attention.head_count_kv": model.kv_heads, "attention.sliding_window": 32,
        "attention.key_length": model.hidden // model.heads, "attention.value_length": model.hidden // model.heads,
        "rope.dimension_count": model.hidden // model.heads,
    }  # fmt: skip
    metadata = [text("general.architecture") + struct.pack("<I", 8) + text(arch)]
    metadata += [text(f"{arch}.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    metadata.append(text(f"{arch}.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-6))
    table, at = [], 0
    for name, shape in shapes_of(model).items():
        dims = shape[::-1]
        table.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, at))
        size = 4
        for dim in dims:
            size *= dim
        at += size + -size % 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(metadata)) + b"".join(metadata + table)
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        file.truncate(len(head) + -len(head) % 32 + at)
    return path
