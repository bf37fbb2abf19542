"""The tables of GGUF: types of metadata values, of tensors, and of whole files.

Tensor types come from `ggml_type`: a plain type is an element type of ours, a block type one of `ggml_types`.
"""

from __future__ import annotations

from flyweight.foundation.dtypes import DType
from flyweight.foundation.ggml_types import GGML_TYPES

__all__ = ["BLOCKS", "FILE_TYPES", "PLAIN", "VALUE_TYPES"]

VALUE_TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
"""Labels of metadata values; the id is the position."""

PLAIN = {
    0: DType.F32,
    1: DType.F16,
    24: DType.I8,
    25: DType.I16,
    26: DType.I32,
    27: DType.I64,
    28: DType.F64,
    30: DType.BF16,
}


BLOCKS = {each.id: each for each in GGML_TYPES.values()}

FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32} | {
    each.name: each.file_type for each in GGML_TYPES.values() if each.file_type is not None
}
"""`general.file_type` by the type of most weights."""
