"""Tiers: decoded or repacked copies of an npy-dir, built once and mapped at every later start.

    from flyweight.tiers import build, open_model_from

    build("model-npy", "packed")                         # once; `flyweight run` does it by itself
    model, choice = open_model_from("model-npy")         # ever after: maps what is ready
    print(choice.tier, choice.why)

`tier_table` has the tiers, `store` the user's cache that holds them, `arrays` what the user's index says of a model, `sentinel`
how a tier is trusted, `state` whether it is. `building`, `choosing` with its `decision`, `tier_check` and `upkeep` do what
their names say. docs/formats/tiers.md is the layout, normatively. What a model without tiers does not need is imported when
it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flyweight.foundation.lazy_table import lazy_exports
from flyweight.tiers.tier_table import TIERS, Tier, has_tiers, tier_named

if TYPE_CHECKING:
    from flyweight.tiers.building import Built, build
    from flyweight.tiers.choosing import Choice, open_best, open_model_from
    from flyweight.tiers.state import State
    from flyweight.tiers.tier_check import audit, diff, verify
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
    "building": ("Built", "build"),
    "choosing": ("Choice", "open_best", "open_model_from"),
    "state": ("State",),
    "tier_check": ("audit", "diff", "verify"),
    "upkeep": ("Entry", "Listing", "entries", "listing", "prune", "prune_cache", "state_of"),
}
__getattr__ = lazy_exports(__name__, {name: f"{module}:{name}" for module, names in _HOMES.items() for name in names})
