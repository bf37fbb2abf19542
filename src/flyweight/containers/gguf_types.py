"""The tables of GGUF: types of metadata values, of tensors, and of whole files.

Tensor types come from `ggml_type`. A plain type is an element type of ours; a block type stores
`weights` consecutive weights of a row in `nbytes` bytes, and its codec carries its name. Types
without a codec are here too, so that they survive a remux. Ids 4, 5, 31 to 33 and 36 to 38 were
withdrawn by ggml and are unknown on purpose.
"""

from __future__ import annotations

from typing import NamedTuple

from flyweight.dtypes import DType

__all__ = ["BLOCKS", "FILE_TYPES", "PLAIN", "VALUE_TYPES", "Block"]

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


class Block(NamedTuple):
    codec: str
    weights: int
    nbytes: int


BLOCKS = {
    2: Block("q4_0", 32, 18),
    3: Block("q4_1", 32, 20),
    6: Block("q5_0", 32, 22),
    7: Block("q5_1", 32, 24),
    8: Block("q8_0", 32, 34),
    9: Block("q8_1", 32, 36),  # two f16 and 32 i8, as ggml has it; gguf-py says 40
    10: Block("q2_k", 256, 84),
    11: Block("q3_k", 256, 110),
    12: Block("q4_k", 256, 144),
    13: Block("q5_k", 256, 176),
    14: Block("q6_k", 256, 210),
    15: Block("q8_k", 256, 292),
    16: Block("iq2_xxs", 256, 66),
    17: Block("iq2_xs", 256, 74),
    18: Block("iq3_xxs", 256, 98),
    19: Block("iq1_s", 256, 50),
    20: Block("iq4_nl", 32, 18),
    21: Block("iq3_s", 256, 110),
    22: Block("iq2_s", 256, 82),
    23: Block("iq4_xs", 256, 136),
    29: Block("iq1_m", 256, 56),
    34: Block("tq1_0", 256, 54),
    35: Block("tq2_0", 256, 66),
    39: Block("mxfp4", 32, 17),
    40: Block("nvfp4", 64, 36),
    41: Block("q1_0", 128, 18),
    42: Block("q2_0", 64, 18),
}

FILE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 32, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9,
    "q2_k": 10, "q3_k": 12, "q4_k": 15, "q5_k": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "mxfp4": 38,
}  # fmt: skip
"""`general.file_type` by the type of most weights (`llama_ftype`; the medium mix where a K-quant has several)."""
