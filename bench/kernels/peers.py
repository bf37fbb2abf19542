"""The tools the benches measure beside, where they are installed; a bench goes on without those that are not."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["dequantizer", "gguf_py", "libggml", "quantizer", "quantizer_of_bf16"]

Array = np.ndarray[Any, Any]

GGML_TYPES = {
    "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8,
    "q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14, "iq4_xs": 23, "iq4_nl": 20,
}  # fmt: skip


@cache
def libggml() -> ctypes.CDLL | None:
    """llama.cpp's own library of block types, as the wheel `pywhispercpp` carries it."""
    spec = importlib.util.find_spec("_pywhispercpp")
    places = [Path(spec.origin).parent] if spec and spec.origin else []
    for library in (found for place in places for found in sorted(place.glob("libggml-base*.so*"))):
        made = ctypes.CDLL(str(library))
        made.ggml_quantize_chunk.restype = ctypes.c_size_t
        return made
    print("libggml is not here (the wheel pywhispercpp has it): measuring without it")
    return None


@cache
def gguf_py() -> Any:
    try:
        import gguf
    except ModuleNotFoundError:
        print("gguf-py is not here: measuring without it")
        return None
    return gguf


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def dequantizer(name: str, blocks: Array, out: Array) -> Callable[[], object] | None:
    """libggml's dequantize_row over all blocks, to f32."""
    library = libggml()
    if library is None:
        return None
    row = getattr(library, f"dequantize_row_{name.replace('k', 'K')}")
    return lambda: row(_at(blocks), _at(out), ctypes.c_int64(out.size))


def quantizer(name: str, values: Array, blocks: Array) -> Callable[[], object] | None:
    """libggml's encoding of f32 rows, without importance. values: (rows, columns)"""
    library = libggml()
    if library is None or name not in GGML_TYPES:
        return None
    rows, columns = (ctypes.c_int64(count) for count in values.shape)
    start, kind = ctypes.c_int64(0), GGML_TYPES[name]
    return lambda: library.ggml_quantize_chunk(kind, _at(values), _at(blocks), start, rows, columns, None)


def quantizer_of_bf16(name: str, values: Array, blocks: Array) -> Callable[[], object] | None:
    """llama.cpp's way with a bf16 source: its rows widened into a buffer, then quantized. values: bf16 (rows, columns)"""
    library, wide = libggml(), np.zeros(values.shape, np.float32)
    quantize = quantizer(name, wide, blocks)
    if library is None or quantize is None:
        return None

    def work() -> None:
        library.ggml_bf16_to_fp32_row(_at(values), _at(wide), ctypes.c_int64(values.size))
        quantize()

    return work
