"""Compressed at rest, ready at run time: what is decoded or arranged once and mapped ever after.

    from flyweight.tiers import build, open_model_from

    build("model-npy", "packed")                         # once; `flyweight run` does it by itself
    model, choice = open_model_from("model-npy")         # ever after: maps what is ready
    print(choice.tier, choice.why)

`table` has the tiers, `seal` how one is trusted, `state` whether it is, `building` and `choosing` what the names say.
docs/formats/tiers.md is the layout, normatively.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flyweight.tiers.choosing import Choice, open_best, open_model_from
from flyweight.tiers.state import State, state_of
from flyweight.tiers.table import TIERS, Tier, has_tiers, tier_named

if TYPE_CHECKING:
    from flyweight.tiers.building import Built, build

__all__ = [
    "TIERS",
    "Built",
    "Choice",
    "State",
    "Tier",
    "build",
    "has_tiers",
    "open_best",
    "open_model_from",
    "state_of",
    "tier_named",
]


def __getattr__(name: str) -> Any:
    """Building needs the pipeline, which starting a model does not."""
    if name in ("Built", "build"):
        from flyweight.tiers import building

        return getattr(building, name)
    raise AttributeError(f"module 'flyweight.tiers' has no attribute '{name}'")
