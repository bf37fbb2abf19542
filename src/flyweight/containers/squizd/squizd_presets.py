"""The named quantizations of SQUIZD, and the masks over them.

    int4          every matrix in 4 bits, each `sub_block` weights of a row with a scale and a zero of their own
    int2          the same in 2 bits, but the matrices a model feels most (INT2_KEPT) in 4
    tca           every matrix bit for bit, smaller
    astc, astc-WxH  every matrix as a texture of W×H blocks, for hardware that has such textures
    none          plain numbers

Vectors are always plain numbers. Embeddings and the output head are compressed by `tca` alone.
"""

from __future__ import annotations

import re

from flyweight.containers.named_quantizations import MaskRule, Preset, PresetRule
from flyweight.containers.squizd.squizd_options import INT2_SUB_BLOCK, INT4_SUB_BLOCK, Extras
from flyweight.foundation.astc_footprints import FOOTPRINTS
from flyweight.foundation.tensor import CodecSpec, Param

SPARSE_BLOCK = 64
"""Weights a bit of a mask stands for, where no sub-blocks say otherwise."""
INT2_KEPT = ("*.v_proj.*", "*.o_proj.*", "*.qkv_proj.*", "*.down_proj.*")
"""Matrices that an INT2 file holds in 4 bits: the values of attention, and what it and the feed-forward add to the stream."""
FFN = ("*.mlp.*_proj.weight", "*.ffn_gate.weight", "*.ffn_up.weight", "*.ffn_down.weight")
"""The matrices that may have masks, in either naming."""
_ALL = ("*",)
_ASTC = re.compile(r"astc-(\d{1,2})x(\d{1,2})")


def preset(quant: str, extras: Extras) -> Preset:
    """The named quantizations of SQUIZD; of other names only the masks are its own."""
    rules: tuple[PresetRule, ...] = ()
    if quant == "int4":
        rules = (PresetRule(_ALL, _tabled(4, extras.sub_block, INT4_SUB_BLOCK)),)
    elif quant == "int2":
        kept = PresetRule(INT2_KEPT, _tabled(4, extras.sub_block, INT4_SUB_BLOCK))
        rules = (kept, PresetRule(_ALL, _tabled(2, extras.sub_block, INT2_SUB_BLOCK)))
    elif quant == "tca":
        rules = (PresetRule(_ALL, CodecSpec("lossless")),)
    elif (found := _ASTC.fullmatch(quant)) and (footprint := (int(found[1]), int(found[2]))) in FOOTPRINTS:
        rules = (PresetRule(_ALL, CodecSpec("astc", dict(zip(("width", "height"), footprint, strict=True)))),)
    return Preset(rules, protect=quant != "tca", masks=_masks(quant, extras))


def _tabled(bits: int, sub_block: int | None, default: int) -> CodecSpec:
    length: Param = default if sub_block is None else sub_block or "row"
    return CodecSpec("tabled", {"bits": bits, "length": length})


def _masks(quant: str, extras: Extras) -> MaskRule | None:
    if extras.sparse is None:
        return None
    together = extras.dropped_together(quant)
    block = extras.sparse_block or (together if together > 1 else SPARSE_BLOCK)
    return MaskRule(FFN, block, 0.0 if extras.sparse == "auto" else extras.sparse)
