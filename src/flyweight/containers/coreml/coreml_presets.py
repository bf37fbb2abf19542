"""Named quantizations of Core ML packages.

    int8, uint8, int4, uint4        a scale per output channel; with -tensor one in all, with -b32 one for 32 input channels
    lut1 … lut8                     a palette of 2, 4, 8, 16, 64 or 256 values; with -g16 one for 16 output channels, with -v2
                                    of pairs of neighbours along the output channels, with -scaled a scale for each of these
    sparse                          the values that are not zero, and where they belong
    sparse-lut4, sparse-int8        the same of a palette, of integers

Signed linear forms are symmetric, without an offset; unsigned ones have one. Codes of linear forms are those of coremltools,
byte for byte. Scales and tables have the element type of the tensor.
"""

from __future__ import annotations

import re

from flyweight.containers.named_quantizations import Preset, PresetRule
from flyweight.foundation.tensor import CodecSpec, Param

_LINEAR = re.compile(r"(?P<unsigned>u?)int(?P<bits>[48])(?P<tensor>-tensor)?(?:-b(?P<block>[1-9]\d{0,5}))?")
_PALETTE = re.compile(r"lut(?P<bits>[1-8])(?:-g(?P<group>[1-9]\d{0,5}))?(?:-v(?P<vector>[2-8]))?(?P<scaled>-scaled)?")
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
    bare = name.removeprefix("sparse-")
    if found := _LINEAR.fullmatch(bare):
        codec = _linear(**found.groupdict())
    elif found := _PALETTE.fullmatch(bare):
        codec = _palette(**found.groupdict())
    else:
        return None
    if bare == name or codec is None:
        return codec
    return None if "inner" in codec.params else CodecSpec("sparse_codes", {"inner": codec})


def _linear(unsigned: str, bits: str, tensor: str | None, block: str | None) -> CodecSpec | None:
    if tensor and block:
        return None
    blocks = "" if tensor else f"1x{block}" if block else "1"
    offset = "data" if unsigned else ""
    return CodecSpec("blockwise", {"data": f"{unsigned or 'i'}{bits}", "block": blocks, "scale": _OWN, "offset": offset})


def _palette(bits: str, group: str | None, vector: str | None, scaled: str | None) -> CodecSpec | None:
    if int(bits) not in _LUT_BITS:
        return None
    params: dict[str, Param] = {"bits": int(bits), "table": _OWN}
    params |= {"group": int(group), "axis": 0} if group else {}
    params |= {"vector": int(vector), "vector_axis": 0} if vector else {}
    codec = CodecSpec("palette", params)
    return CodecSpec("scaled", {"block": "1", "scale": _OWN, "inner": codec}) if scaled else codec
