"""The tiers of an npy-dir: what may lie beside its arrays, ready to be run.

    tier        where                          sentinel                   what
    packed      flyweight_packed.safetensors   .flyweight_packed_ready    the arrays as the products take them
    int4        squish_4bit/                   .squish_4bit_ready         an MLX directory of 4 bits
    int3        squish_3bit/                   .squish_3bit_ready         an MLX directory of 3 bits
    cache       squish_weights.safetensors     .squish_ready              everything decoded, bf16
    finalized   finalized/                     finalized/.ready           everything decoded, f16, a .npy for each tensor

in the order in which they are preferred: Squish's own, and `packed` before all. What none of them replaces are the arrays
themselves, called by their form (int8, int4, int3 …), and a model of any other format, which is `native`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from flyweight.errors import UnsupportedError

__all__ = ["ARRAYS", "AUTO", "FRESH", "LOCK", "NATIVE", "TIERS", "Tier", "has_tiers", "home_of_tiers", "tier_named"]

AUTO, ARRAYS, NATIVE = "auto", "arrays", "native"
LOCK, FRESH = ".flyweight_tiers.lock", ".flyweight_tiers.new"
"""Held by whoever builds or removes a tier of the directory; and what will be a sentinel."""


class Tier(NamedTuple):
    name: str
    place: str
    """A file or folder in the model's directory."""
    sentinel: str
    decoded: bool
    """Whether it is larger than the arrays, because nothing in it is quantised."""
    about: str

    @property
    def is_folder(self) -> bool:
        return "." not in self.place


TIERS = (
    Tier("packed", "flyweight_packed.safetensors", ".flyweight_packed_ready", False, "as the products take them"),
    Tier("int4", "squish_4bit", ".squish_4bit_ready", False, "an MLX directory of 4 bits"),
    Tier("int3", "squish_3bit", ".squish_3bit_ready", False, "an MLX directory of 3 bits"),
    Tier("cache", "squish_weights.safetensors", ".squish_ready", True, "decoded, one file of bf16"),
    Tier("finalized", "finalized", "finalized/.ready", True, "decoded, a file of f16 for each tensor"),
)


def tier_named(name: str) -> Tier:
    for tier in TIERS:
        if tier.name == name:
            return tier
    known = ", ".join(tier.name for tier in TIERS)
    raise UnsupportedError(f"no tier named '{name}'", code="E_TIER", hint=f"known: {known}")


def home_of_tiers(path: Path | str) -> Path:
    """The directory that the tiers of a model are in; UnsupportedError if it has none."""
    root = Path(path)
    if not has_tiers(root):
        raise UnsupportedError("only an npy-dir has tiers", code="E_TIER", file=str(path), hint="convert it with --to npy-dir")
    return root


def has_tiers(path: Path) -> bool:
    """Whether a path looks like an npy-dir, whose reader then says whether it is one."""
    return (path / "tensors").is_dir() and (path / "manifest.json").is_file()
