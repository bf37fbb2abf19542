"""Named quantizations of MLX: every linear layer and the embedding, as mlx-lm does.

    2bit … 8bit     affine groups of 64; int2 … int8 are the same; with -g32 or -g128 other groups
    mixed_L_H       L bits, and H for the values of attention and the down projections of some layers, and for the output head

The layers of a mix are the first and the last eighth and every third between.
"""

from __future__ import annotations

import re

from flyweight.containers.named_quantizations import KEPT, Preset, PresetRule
from flyweight.foundation.tensor import CodecSpec

_BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
QUANTS = (
    "2bit", "3bit", "4bit", "5bit", "6bit", "8bit",
    "mixed_2_6", "mixed_3_4", "mixed_3_5", "mixed_3_6", "mixed_3_8", "mixed_4_6", "mixed_4_8",
)  # fmt: skip

SIZES = tuple(CodecSpec("affine", {"bits": bits, "group": group, "scale": "f16"}) for bits in _BITS for group in GROUPS)
"""Codecs that a model of a certain size is made of."""

_UNIFORM = re.compile(r"(?:int(\d)|(\d)[-_]?bit)(?:[-_]g(\d+))?")
_MIXED = re.compile(r"mixed[-_](\d)[-_](\d)")
_MORE = "first 1/8, last 1/8, every 3rd"
_FELT_MOST = ("*v_proj.weight", "*.v_a_proj.weight", "*.v_b_proj.weight", "*.down_proj.weight")
"""The first also means `qkv_proj`, as it does to mlx-lm."""
_PLAIN = PresetRule(("*norm.weight",), KEPT)
_ROUTER = ("*.mlp.gate.weight",)


def preset(quant: str) -> Preset | None:
    name = quant.lower()
    if (found := _UNIFORM.fullmatch(name)) and (bits := int(found[1] or found[2])) in _BITS:
        group = int(found[3] or 64)
        if group not in GROUPS:
            return None
        router = () if bits == 8 else (_rule(_ROUTER, 8),)
        return Preset((_PLAIN, *router, _rule(("*",), bits, group)), protect=False)
    if (found := _MIXED.fullmatch(name)) and (own := name.replace("-", "_")) in QUANTS:
        low, high = int(found[1]), int(found[2])
        more = (_rule(_FELT_MOST, high, layers=_MORE), _rule(("lm_head.weight",), high))
        return Preset((_PLAIN, _rule(_ROUTER, 8), *more, _rule(("*",), low)), protect=False, name=own)
    return None


def _rule(patterns: tuple[str, ...], bits: int, group: int = 64, layers: str = "") -> PresetRule:
    return PresetRule(patterns, CodecSpec("affine", {"bits": bits, "group": group, "scale": "f16"}), layers=layers)
