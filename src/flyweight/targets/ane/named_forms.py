"""Forms by the names the command line takes, as codecs.

fp16                 dense
int8, int8-tensor    one scale for each output channel, or one for all
int8-b32, int4-b32   one scale for each 32 weights of a channel
int4                 one scale for each output channel
lut4, lut8 …         a palette of 1, 2, 3, 4, 6 or 8 bits; lut4-g16: a codebook for 16 output channels;
                     lut4-v2: an index for 2 output channels
sparse               a mask and the values that are not zero
fp8                  e4m3 with one scale for each output channel
"""

from __future__ import annotations

import re

from flyweight.foundation.errors import ArgumentError, nearest
from flyweight.foundation.tensor import RAW, CodecSpec

AUTO, SPARSE = "auto", "sparse"
EXAMPLES = (
    "auto", "fp16", "int8", "int4", "int8-b32", "int4-b32", "lut2", "lut3", "lut4", "lut6", "lut8", "lut4-g16", "lut4-v2",
    "sparse", "fp8",
)  # fmt: skip
CANDIDATES = ("sparse", "lut2", "lut3", "lut4", "lut4-g16", "lut6", "int8", "lut8")
"""What `auto` tries."""
_PALETTE = re.compile(r"lut([123468])(?:-g([1-9]\d{0,5}))?(?:-v([1-9]\d?))?")
_INTEGERS = re.compile(r"int([48])(?:-(tensor|b[1-9]\d{0,5}))?")


def codec_of_form(name: str) -> CodecSpec:
    """The codec that a form's name means."""
    if name == "fp16":
        return RAW
    if name == SPARSE:
        return CodecSpec("sparse", {"form": "stream", "inner": RAW})
    if name == "fp8":
        return CodecSpec("fp8", {"format": "e4m3", "rows": 1, "columns": 0, "scale": "f16"})
    if found := _PALETTE.fullmatch(name):
        palette = {"bits": int(found[1]), "group": int(found[2] or 0), "axis": 0}
        return CodecSpec("palette", {**palette, "vector": int(found[3] or 1), "vector_axis": 0})
    if found := _INTEGERS.fullmatch(name):
        block = "1" if found[2] is None else "" if found[2] == "tensor" else f"1x{found[2][1:]}"
        return CodecSpec("blockwise", {"data": f"i{found[1]}", "block": block, "scale": "f16"})
    raise ArgumentError(
        f"there is no form '{name}'{nearest(name, EXAMPLES)}", code="E_FORM", hint=f"such as {', '.join(EXAMPLES)}"
    )
