"""Which models have tiers, and where (`containers.npy_dir.tier_places` has the table).

What no tier replaces are the arrays themselves, called by their form (int8, int4, int3 …), and a model of any other format,
which is `native`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from flyweight.containers.npy_dir.tier_places import TIERS, Tier, looks_like
from flyweight.foundation.errors import UnsupportedError

__all__ = ["ARRAYS", "AUTO", "CHOICES", "NATIVE", "TIERS", "Home", "Tier", "has_tiers", "require_tiers", "tier_named"]

AUTO, ARRAYS, NATIVE = "auto", "arrays", "native"
CHOICES = (AUTO, *(tier.name for tier in TIERS), "int8", ARRAYS, NATIVE)
"""What a user may ask for: a tier, or the arrays, also by the name of the only form that no tier is called."""
has_tiers = looks_like


class Home(NamedTuple):
    """A directory with places and sentinels of tiers. A model has two: one in the user's cache, where `run` builds, and its
    own directory, where Squish does, and `cache build --in-place`."""

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
    from flyweight.sources import local_path  # which help does without

    root = local_path(path)
    if not has_tiers(root):
        raise UnsupportedError("only an npy-dir has tiers", code="E_TIER", file=str(path), hint="convert it with --to npy-dir")
    return root
