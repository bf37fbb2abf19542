"""The block types of ggml. Containers, codecs, kernels and (by native/blocks/write_ggml_types.py) C++ take them from here.

A block holds `elements` consecutive weights of a row in `nbytes` bytes; its codec carries its name. `kernels` is what we can do
with blocks: "decode" them, encode by "nearest" rounding or by a "search" for scales, and multiply by them, a "product".
A type without kernels is known only so that it survives a remux. Ids 4, 5, 31 to 33 and 36 to 38 were withdrawn by ggml.
"""

from __future__ import annotations

from typing import NamedTuple


class GgmlType(NamedTuple):
    id: int
    name: str
    elements: int
    nbytes: int
    kernels: tuple[str, ...] = ()
    file_type: int | None = None
    """`general.file_type` of a file of mostly this type (`llama_ftype`; the medium mix where a K type has several)."""


_TYPES = (
    GgmlType(2, "q4_0", 32, 18, ("decode", "nearest", "product"), 2),
    GgmlType(3, "q4_1", 32, 20, ("decode", "nearest", "product"), 3),
    GgmlType(6, "q5_0", 32, 22, ("decode", "nearest", "product"), 8),
    GgmlType(7, "q5_1", 32, 24, ("decode", "nearest", "product"), 9),
    GgmlType(8, "q8_0", 32, 34, ("decode", "nearest", "product"), 7),
    GgmlType(9, "q8_1", 32, 36, ("decode", "nearest")),  # two f16 and 32 i8, as ggml has it; gguf-py says 40
    GgmlType(10, "q2_k", 256, 84, ("decode", "search", "product"), 10),
    GgmlType(11, "q3_k", 256, 110, ("decode", "search", "product"), 12),
    GgmlType(12, "q4_k", 256, 144, ("decode", "search", "product"), 15),
    GgmlType(13, "q5_k", 256, 176, ("decode", "search", "product"), 17),
    GgmlType(14, "q6_k", 256, 210, ("decode", "search", "product"), 18),
    GgmlType(15, "q8_k", 256, 292, ("decode", "search")),
    GgmlType(16, "iq2_xxs", 256, 66),
    GgmlType(17, "iq2_xs", 256, 74),
    GgmlType(18, "iq3_xxs", 256, 98),
    GgmlType(19, "iq1_s", 256, 50),
    GgmlType(20, "iq4_nl", 32, 18, ("decode", "search", "product"), 25),
    GgmlType(21, "iq3_s", 256, 110),
    GgmlType(22, "iq2_s", 256, 82),
    GgmlType(23, "iq4_xs", 256, 136, ("decode", "search", "product"), 30),
    GgmlType(29, "iq1_m", 256, 56),
    GgmlType(34, "tq1_0", 256, 54),
    GgmlType(35, "tq2_0", 256, 66),
    GgmlType(39, "mxfp4", 32, 17, ("decode", "nearest", "product"), 38),
    GgmlType(40, "nvfp4", 64, 36),
    GgmlType(41, "q1_0", 128, 18),
    GgmlType(42, "q2_0", 64, 18),
)


GGML_TYPES = {each.name: each for each in _TYPES}


def ggml_types_with(kernel: str) -> tuple[str, ...]:
    """The names of the types that have this kind of kernel."""
    return tuple(each.name for each in _TYPES if kernel in each.kernels)
