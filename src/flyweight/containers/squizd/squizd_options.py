"""What `convert` offers for SQUIZD alone: named quantizations, masks, a draft head, a Core ML package.

    int4          every matrix in 4 bits, each `sub_block` weights of a row with a scale and a zero of their own
    int2          the same in 2 bits, but the matrices a model feels most (INT2_KEPT) in 4
    tca           every matrix bit for bit, smaller
    astc, astc-WxH  every matrix as a texture of W×H blocks, for hardware that has such textures
    none          plain numbers

Vectors are always plain numbers. Embeddings and the output head are compressed by `tca` alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path
from typing import ClassVar, Literal

from flyweight.containers.named_quantizations import MaskRule, Preset, PresetRule
from flyweight.containers.options import OptionGroup, count, option, options_of
from flyweight.containers.squizd.blocks import LEGAL_FOOTPRINTS
from flyweight.foundation.tensor import CodecSpec, Param

__all__ = ["FFN", "GROUP", "QUANTS", "Extras", "preset"]

QUANTS = ("int4", "int2", "tca", "astc", "astc-4x4 … astc-12x12", "none")
INT4_SUB_BLOCK = 64
INT2_SUB_BLOCK = 64
SPARSE_BLOCK = 64
"""Weights a bit of a mask stands for, where no sub-blocks say otherwise."""
INT2_KEPT = ("*.v_proj.*", "*.o_proj.*", "*.qkv_proj.*", "*.down_proj.*")
"""Matrices that an INT2 file holds in 4 bits: the values of attention, and what it and the feed-forward add to the stream."""
FFN = ("*.mlp.*_proj.weight", "*.ffn_gate.weight", "*.ffn_up.weight", "*.ffn_down.weight")
"""The matrices that may have masks, in either naming."""
_ALL = ("*",)
_ASTC = re.compile(r"astc-(\d{1,2})x(\d{1,2})")


def _share(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"{text!r} is neither `auto` nor between 0 and 1")
    return share


@dataclass(frozen=True, slots=True)
class Extras:
    """What only a SQUIZD file can have. `sub_block` 0 is a whole row; `sparse` "auto" masks what is zero already."""

    format: ClassVar[str] = "squizd"

    sub_block: int | None = field(
        default=None, metadata=option("--sub-block", count(0), "N", "Weights that share a scale; 0 for a whole row.")
    )
    sparse: float | Literal["auto"] | None = field(
        default=None, metadata=option("--sparse", _share, "P", "Drop this share of FFN blocks; `auto`: zeros.")
    )
    sparse_block: int | None = field(
        default=None, metadata=option("--sparse-block", count(1), "N", "Weights dropped together.")
    )
    eagle: Path | None = field(default=None, metadata=option("--eagle", Path, None, "A draft head to embed, as safetensors."))
    coreml: Path | None = field(default=None, metadata=option("--coreml", Path, None, "A Core ML package to embed."))

    def conflict(self, quant: str | None, has_recipe: bool) -> str | None:
        if has_recipe and (self.sub_block, self.sparse, self.sparse_block) != (None, None, None):
            return "a recipe says itself what is sparse and how long sub-blocks are"
        if self.sub_block is not None and quant not in ("int4", "int2"):
            return "only int4 and int2 have sub-blocks"
        if self.sparse_block is not None and self.sparse is None:
            return "a block of masks goes with a sparsity"
        if self.sparse is not None and (self.sub_block == 0 or (quant or "").startswith("astc")):
            return "a mask drops whole runs that share a scale: sub-blocks must be shorter than rows, and ASTC has none"
        if self.sparse is not None and self.sparse_block is not None and self.sparse_block % self._length(quant):
            return f"blocks of {self.sparse_block} end inside sub-blocks of {self._length(quant)}: choose a multiple"
        return None

    @property
    def draft(self) -> Path | None:
        return self.eagle

    @property
    def inputs(self) -> Mapping[str, Path]:
        return {name: path for name, path in (("eagle", self.eagle), ("coreml", self.coreml)) if path is not None}

    def files(self) -> Mapping[str, bytes]:
        from flyweight.containers import mlpackage  # which lists an archive: not needed to show or read an option

        return {mlpackage.NAME: mlpackage.read_package(self.coreml)} if self.coreml else {}

    def _length(self, quant: str | None) -> int:
        """The weights that have to be dropped together."""
        if quant == "int2":
            return self.sub_block or lcm(INT4_SUB_BLOCK, INT2_SUB_BLOCK)
        return (self.sub_block or INT4_SUB_BLOCK) if quant == "int4" else 1

    def masks(self, quant: str) -> MaskRule | None:
        if self.sparse is None:
            return None
        length = self._length(quant)
        block = self.sparse_block or (length if length > 1 else SPARSE_BLOCK)
        return MaskRule(FFN, block, 0.0 if self.sparse == "auto" else self.sparse)


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
    elif (found := _ASTC.fullmatch(quant)) and (footprint := (int(found[1]), int(found[2]))) in LEGAL_FOOTPRINTS:
        rules = (PresetRule(_ALL, CodecSpec("astc", dict(zip(("width", "height"), footprint, strict=True)))),)
    return Preset(rules, protect=quant != "tca", masks=extras.masks(quant))


def _tabled(bits: int, sub_block: int | None, default: int) -> CodecSpec:
    length: Param = default if sub_block is None else sub_block or "row"
    return CodecSpec("tabled", {"bits": bits, "length": length})


GROUP = OptionGroup("SQUIZD", QUANTS, options_of(Extras), Extras)
