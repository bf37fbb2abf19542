"""Statistics of one small matrix or two, written by hand: ours, and llama.cpp's in both forms."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from support.toys import safetensors_bytes

__all__ = ["ABOUT", "GOOD", "GRAM", "PACKED", "PARTS", "dat", "gguf", "ours", "sums"]

GRAM = np.array([[4.0, 1.0, 0.0], [1.0, 1.0, -0.5], [0.0, -0.5, 9.0]], np.float32)
_ROOTS = np.sqrt(np.diag(GRAM))
PACKED = (GRAM / np.outer(_ROOTS, _ROOTS))[np.tril_indices(3)].astype(np.float16)
ABOUT: dict[str, Any] = {"version": 1, "tokens": 64, "inputs": {"a.q": {"a.q": 5, "a.k": 2}}}
PARTS = {
    "a.q.importance": np.array([4, 1, 9], np.float32),
    "a.q.gram_diagonal": np.diag(GRAM).copy(),
    "a.q.gram": PACKED,
    "model.sketch": np.ones(4, np.float32),
}


def ours(parts: dict[str, Any] = PARTS, about: Any = ABOUT, key: str = "flyweight.statistics") -> bytes:
    text = about if isinstance(about, str) else json.dumps(about)
    return safetensors_bytes({name: array for name, array in parts.items() if array is not None}, {key: text})


def dat(
    values: Any = (2.0, 4.0), calls: int = 2, name: bytes = b"blk.0.attn_q.weight", entries: int = 1, end: bytes = b""
) -> bytes:
    raw = np.asarray(values, "<f4").tobytes()
    body = struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(raw) // 4) + raw
    return struct.pack("<i", entries) + body + end


def gguf(tensors: dict[str, tuple[tuple[int, ...], list[float]]], kind: str = "imatrix") -> bytes:
    """Version 3, f32 alone, by the book: dimensions fastest first, data aligned to 32."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1) + text("general.type") + struct.pack("<I", 8) + text(kind)
    data = b""
    for name, (shape, values) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += np.asarray(values, "<f4").tobytes()
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


GOOD = {"blk.0.attn_q.weight.in_sum2": ((2, 1), [2.0, 4.0]), "blk.0.attn_q.weight.counts": ((1, 1), [2.0])}


def sums(values: list[float], count: list[float], **more: Any) -> bytes:
    return gguf({"w.in_sum2": ((len(values), 1), values), "w.counts": ((len(count), 1), count), **more})
