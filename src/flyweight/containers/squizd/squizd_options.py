"""What `convert` offers for SQUIZD alone: named quantizations (`squizd_presets`), masks, a draft head, a Core ML package."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path
from typing import ClassVar, Literal

from flyweight.containers.options import OptionGroup, count, option, options_of, share

QUANTS = ("int4", "int2", "tca", "astc", "astc-4x4 … astc-12x12", "none")
INT4_SUB_BLOCK = 64
INT2_SUB_BLOCK = 64
DEFAULT_TARGET = "M1"
"""What a package is made for where no target is named: what streams there streams on every later one."""
_AUTO = re.compile(r"auto(?::\w+)?")


def _share(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return share(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither auto nor a number between 0 and 1") from None


@dataclass(frozen=True, slots=True)
class Extras:
    """What only a SQUIZD file can have. `sub_block` 0 is a whole row; `sparse` "auto" masks what is zero already."""

    format: ClassVar[str] = "squizd"

    sub_block: int | None = field(
        default=None, metadata=option("--sub-block", count(0), "N", "Weights that share a scale; 0: a whole row.")
    )
    sparse: float | Literal["auto"] | None = field(
        default=None,
        metadata=option("--sparse", _share, "P", "Drop this share of the blocks of FFN matrices; auto: only zeros."),
    )
    sparse_block: int | None = field(
        default=None, metadata=option("--sparse-block", count(1), "N", "Weights per dropped block.")
    )
    eagle: Path | None = field(default=None, metadata=option("--eagle", Path, None, "EAGLE draft head to embed (safetensors)."))
    coreml: Path | str | None = field(
        default=None,
        metadata=option(
            "--coreml", Path, "PACKAGE|auto", "Core ML package to embed; auto, or auto:M2 …: one of the linear layers is made.",
            words=lambda text: _AUTO.fullmatch(text) is not None,
        ),
    )  # fmt: skip

    def conflict(self, quant: str | None, has_recipe: bool) -> str | None:
        if has_recipe and (self.sub_block, self.sparse, self.sparse_block) != (None, None, None):
            return "--sparse, --sparse-block and --sub-block cannot be used with --recipe: write them into the recipe"
        if self.sub_block is not None and quant not in ("int4", "int2"):
            return "--sub-block needs --quant int4 or int2"
        if self.sparse_block is not None and self.sparse is None:
            return "--sparse-block needs --sparse"
        if self.sparse is not None and (self.sub_block == 0 or (quant or "").startswith("astc")):
            return "--sparse needs sub-blocks shorter than a row, and does not work with ASTC"
        if self.sparse is not None and self.sparse_block is not None and self.sparse_block % self.dropped_together(quant):
            return f"--sparse-block {self.sparse_block} must be a multiple of the sub-block, {self.dropped_together(quant)}"
        return None

    @property
    def draft(self) -> Path | None:
        return self.eagle

    @property
    def inputs(self) -> Mapping[str, Path]:
        given = {"eagle": self.eagle, "coreml": None if self.made else self.coreml}
        return {name: Path(path) for name, path in given.items() if path is not None}

    @property
    def made(self) -> Mapping[str, str]:
        return {"coreml": self.coreml} if isinstance(self.coreml, str) and _AUTO.fullmatch(self.coreml) else {}

    def files(self, make_package: Callable[[str], bytes]) -> Mapping[str, bytes]:
        from flyweight.containers import mlpackage  # which lists an archive: not needed to show or read an option

        if self.coreml is None:
            return {}
        if self.made:
            return {mlpackage.NAME: make_package(str(self.coreml).partition(":")[2] or DEFAULT_TARGET)}
        return {mlpackage.NAME: mlpackage.read_package(Path(self.coreml))}

    def dropped_together(self, quant: str | None) -> int:
        """The weights that have to be dropped together."""
        if quant == "int2":
            return self.sub_block or lcm(INT4_SUB_BLOCK, INT2_SUB_BLOCK)
        return (self.sub_block or INT4_SUB_BLOCK) if quant == "int4" else 1


GROUP = OptionGroup("SQUIZD", QUANTS, options_of(Extras), Extras)
