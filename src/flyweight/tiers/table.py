"""The tiers of an npy-dir: forms of the same model that are built once and mapped at every later start.

    tier        where                          sentinel                   what
    packed      flyweight_packed.safetensors   .flyweight_packed_ready    the arrays as the products take them
    int4        squish_4bit/                   .squish_4bit_ready         an MLX directory of 4 bits
    int3        squish_3bit/                   .squish_3bit_ready         an MLX directory of 3 bits
    cache       squish_weights.safetensors     .squish_ready              everything decoded, bf16
    finalized   finalized/                     finalized/.ready           everything decoded, f16, a .npy for each tensor

in the order in which they are preferred: Squish's own, and `packed` before all. What none of them replaces are the arrays
themselves, called by their form (int8, int4, int3 …), and a model of any other format, which is `native`.

A `Home` is a directory with this layout. A model has two: one in the user's cache, where `run` builds, and its own directory,
where Squish does, and `cache build --in-place`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from flyweight.errors import UnsupportedError

__all__ = ["ARRAYS", "AUTO", "NATIVE", "TIERS", "Home", "Tier", "has_tiers", "require_tiers", "tier_named"]

AUTO, ARRAYS, NATIVE = "auto", "arrays", "native"


class Tier(NamedTuple):
    name: str
    place: str
    """A file or folder in a home."""
    sentinel: str
    decoded: bool
    """Whether it is larger than the arrays, because nothing in it is quantised."""
    about: str
    is_model: bool = False
    """Whether it is a whole model, with a config and a tokenizer of its own."""

    @property
    def is_folder(self) -> bool:
        return "." not in self.place


TIERS = (
    Tier("packed", "flyweight_packed.safetensors", ".flyweight_packed_ready", False, "as the products take them"),
    Tier("int4", "squish_4bit", ".squish_4bit_ready", False, "an MLX directory of 4 bits", True),
    Tier("int3", "squish_3bit", ".squish_3bit_ready", False, "an MLX directory of 3 bits", True),
    Tier("cache", "squish_weights.safetensors", ".squish_ready", True, "decoded, one file of bf16"),
    Tier("finalized", "finalized", "finalized/.ready", True, "decoded, a file of f16 for each tensor"),
)


class Home(NamedTuple):
    """Where tiers of a model lie."""

    root: Path
    """The model's directory: its arrays and side files."""
    path: Path
    """The directory that the tiers are in."""

    @property
    def in_place(self) -> bool:
        return self.path == self.root


def tier_named(name: str) -> Tier:
    for tier in TIERS:
        if tier.name == name:
            return tier
    known = ", ".join(tier.name for tier in TIERS)
    raise UnsupportedError(f"no tier named '{name}'", code="E_TIER", hint=f"known: {known}")


def require_tiers(path: Path | str) -> Path:
    """The directory of a model that can have tiers; UnsupportedError if it is of another format."""
    root = Path(path)
    if not has_tiers(root):
        raise UnsupportedError("only an npy-dir has tiers", code="E_TIER", file=str(path), hint="convert it with --to npy-dir")
    return root


def has_tiers(path: Path) -> bool:
    """Whether a path looks like an npy-dir, whose reader then says whether it is one."""
    return (path / "tensors").is_dir() and (path / "manifest.json").is_file()
