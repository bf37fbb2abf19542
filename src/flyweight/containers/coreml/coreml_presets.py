"""Named quantizations of Core ML packages.

    int8, uint8, int4, uint4        a scale per output channel; with -tensor one in all, with -b32 one for 32 input channels
    lut1 … lut8                     a palette of 2, 4, 8, 16, 64 or 256 values; with -g16 one for 16 output channels, with -v2
                                    of pairs of neighbours along the output channels
    sparse                          the values that are not zero, and where they belong
    sparse-lut4, sparse-int8        the same of a palette, of integers

Signed linear forms are symmetric, without an offset; unsigned ones have one. Codes of linear forms are those of coremltools,
byte for byte. Scales and tables have the element type of the tensor.
"""

from __future__ import annotations

import re

from flyweight.containers.named_quantizations import Preset, PresetRule
from flyweight.foundation.tensor import CodecSpec, Param

_NAME = re.compile(r"(sparse-)?(?:(u?int)([48])|lut([1-8]))(-tensor|-b\d+|-g\d+)?(-v[2-8])?")
_LUT_BITS = (1, 2, 3, 4, 6, 8)
_OWN = "stored"
"""Scales and tables have the element type that the tensor has (see `pipeline.plans.recipe`)."""
_EXACT = "coremltools"
"""The quantizer that gives the bytes of coremltools' linear quantization."""


def preset(quant: str) -> Preset | None:
    codec = codec_named(quant.lower().replace("_", "-"))
    if codec is None:
        return None
    return Preset((PresetRule(("*",), codec, quantizer=_EXACT if "data" in codec.params else ""),), protect=True)


def codec_named(name: str) -> CodecSpec | None:
    if name == "sparse":
        return CodecSpec("sparse", {"form": "stream"})
    if (found := _NAME.fullmatch(name)) is None:
        return None
    sparse, integer, width, bits, grouping, vector = found.groups()
    if integer:
        if vector or (grouping or "").startswith("-g"):
            return None
        block = {None: "1", "-tensor": ""}.get(grouping) if not (grouping or "").startswith("-b") else f"1x{grouping[2:]}"
        unsigned = integer == "uint"
        params: dict[str, Param] = {"data": f"{'u' if unsigned else 'i'}{width}", "block": block or "", "scale": _OWN}
        codec = CodecSpec("blockwise", {**params, "offset": "data" if unsigned else ""})
    else:
        if int(bits) not in _LUT_BITS or grouping in ("-tensor",) or (grouping or "").startswith("-b"):
            return None
        params = {"bits": int(bits), "table": _OWN}
        if grouping:
            params |= {"group": int(grouping[2:]), "axis": 0}
        if vector:
            params |= {"vector": int(vector[2:]), "vector_axis": 0}
        codec = CodecSpec("palette", params)
    return CodecSpec("sparse_codes", {"inner": codec}) if sparse else codec
