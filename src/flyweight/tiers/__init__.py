"""Compressed at rest, ready at run time: what is decoded or arranged once and mapped ever after.

    from flyweight.tiers import build, open_model_from

    build("model-npy", "packed")                         # once; `flyweight run` does it by itself
    model, choice = open_model_from("model-npy")         # ever after: maps what is ready
    print(choice.tier, choice.why)

`table` has the tiers, `store` the user's cache that they are in, `arrays` what the user knows of a model; `seal` how a tier is
trusted, `state` whether it is. `building`, `choosing` with its `decision`, `checking` and `upkeep` are what the names say.
docs/formats/tiers.md is the layout, normatively. What a model without tiers does not need is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flyweight.tiers.table import TIERS, Tier, has_tiers, tier_named

if TYPE_CHECKING:
    from flyweight.tiers.building import Built, build
    from flyweight.tiers.checking import audit, diff, verify
    from flyweight.tiers.choosing import Choice, open_best, open_model_from
    from flyweight.tiers.state import State
    from flyweight.tiers.upkeep import Entry, Listing, entries, listing, prune, prune_cache, state_of

__all__ = [
    "TIERS",
    "Built",
    "Choice",
    "Entry",
    "Listing",
    "State",
    "Tier",
    "audit",
    "build",
    "diff",
    "entries",
    "has_tiers",
    "listing",
    "open_best",
    "open_model_from",
    "prune",
    "prune_cache",
    "state_of",
    "tier_named",
    "verify",
]

_HOMES = {
    "Choice": "choosing", "open_best": "choosing", "open_model_from": "choosing",
    "Built": "building", "build": "building", "State": "state", "state_of": "upkeep", "Entry": "upkeep", "entries": "upkeep",
    "Listing": "upkeep", "listing": "upkeep", "prune": "upkeep", "prune_cache": "upkeep",
    "audit": "checking", "diff": "checking", "verify": "checking",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flyweight.tiers' has no attribute '{name}'")
    return getattr(import_module(f"flyweight.tiers.{_HOMES[name]}"), name)
