"""What `convert` offers for SQUIZD beside its container: named quantizations, masks, a draft head, a Core ML package.

    int4          every matrix in 4 bits, each `sub_block` weights of a row with a scale and a zero of their own
    int2          the same in 2 bits, but the matrices a model feels most (INT2_KEPT) in 4
    tca           every matrix bit for bit, smaller
    astc, astc-WxH  every matrix as a texture of W×H blocks, for hardware that has such textures
    none          plain numbers

Vectors are always plain numbers. Embeddings and the output head are compressed by `tca` alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path
from typing import Literal

from flyweight.codecs.astc import FOOTPRINTS
from flyweight.errors import UnsupportedError
from flyweight.pipeline.recipe import DENSE, ROW, Choice, Masks, Recipe, Rule, choice, preset

__all__ = ["FFN", "QUANTS", "Extras", "recipe_for"]

SQUIZD = "squizd"
QUANTS = ("int4", "int2", "tca", "astc", "astc-4x4 … astc-12x12", "none")
INT4_SUB_BLOCK = 64
INT2_SUB_BLOCK = 64
SPARSE_BLOCK = 64
"""Weights a bit of a mask stands for, where no sub-blocks say otherwise."""
INT2_KEPT = ("*.v_proj.*", "*.o_proj.*", "*.qkv_proj.*", "*.down_proj.*")
"""Matrices that an INT2 file holds in 4 bits: the values of attention, and what it and the feed-forward add to the stream."""
FFN = ("*.mlp.*_proj.weight", "*.ffn_gate.weight", "*.ffn_up.weight", "*.ffn_down.weight")
"""The matrices that may have masks, in either naming."""
_ASTC = re.compile(r"astc-(\d{1,2})x(\d{1,2})")


@dataclass(frozen=True, slots=True)
class Extras:
    """What only a SQUIZD file can have. `sub_block` 0 is a whole row; `sparse` "auto" masks what is zero already."""

    sub_block: int | None = None
    sparse: float | Literal["auto"] | None = None
    sparse_block: int | None = None
    eagle: Path | None = None
    coreml: Path | None = None

    def conflict(self, target: str, quant: str | None, has_recipe: bool) -> str | None:
        """Why these wishes do not go together, or None."""
        if self != Extras() and target != SQUIZD:
            return f"sub-blocks, sparsity, draft heads and Core ML packages go into SQUIZD files, not into {target}"
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

    def _length(self, quant: str | None) -> int:
        """The weights that have to be dropped together."""
        if quant == "int2":
            return self.sub_block or lcm(INT4_SUB_BLOCK, INT2_SUB_BLOCK)
        return (self.sub_block or INT4_SUB_BLOCK) if quant == "int4" else 1

    def masks(self, quant: str | None) -> Masks | None:
        if self.sparse is None:
            return None
        length = self._length(quant)
        block = self.sparse_block or (length if length > 1 else SPARSE_BLOCK)
        return Masks(FFN, block, 0.0 if self.sparse == "auto" else self.sparse)


def recipe_for(quant: str | None, extras: Extras) -> Recipe:
    """The recipe of a named quantization for SQUIZD."""
    return replace(_recipe(quant or "keep", extras.sub_block), masks=extras.masks(quant))


def _recipe(name: str, sub_block: int | None) -> Recipe:
    if name == "int4":
        return Recipe(name, (Rule(("*",), _tabled(4, sub_block, INT4_SUB_BLOCK)),), protect=True)
    if name == "int2":
        kept = Rule(INT2_KEPT, _tabled(4, sub_block, INT4_SUB_BLOCK))
        return Recipe(name, (kept, Rule(("*",), _tabled(2, sub_block, INT2_SUB_BLOCK))), protect=True)
    if name == "tca":
        return Recipe(name, (Rule(("*",), choice("lossless")),), matrices_only=True)
    if name == "none":
        return Recipe(name, (Rule(("*",), DENSE),))
    if (found := _ASTC.fullmatch(name)) and (footprint := (int(found[1]), int(found[2]))) in FOOTPRINTS:
        params = dict(zip(("width", "height"), footprint, strict=True))
        return Recipe(name, (Rule(("*",), choice("astc", params)),), protect=True)
    try:
        return preset(name)
    except UnsupportedError as error:
        error.hint = f"for SQUIZD: {', '.join(QUANTS)}"
        raise


def _tabled(bits: int, sub_block: int | None, default: int) -> Choice:
    length = default if sub_block is None else sub_block or ROW
    return choice("tabled", {"bits": bits, "length": length})
