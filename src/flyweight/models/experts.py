"""Mixtures of experts: whether a checkpoint is one, in whose arrangement, and what its matrices are called in others.

hf    …experts.7.up_proj.weight, a matrix for each expert, or …experts.gate_up_proj, as the family has it
uqff  …experts.up_proj.weight, the experts of a layer stacked
mlx   …switch_mlp.up_proj.weight, the same; in some families under the names of hf
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from flyweight.foundation import strict_json
from flyweight.foundation.expert_names import expert_name, stack_name
from flyweight.foundation.manifest import Manifest
from flyweight.models.dialects.contract import Read
from flyweight.models.model_config import CONFIG_JSON

_STACKED = re.compile(r"(^|\.)switch_(mlp|glu)\.")
_NAMED = re.compile(r"(^|\.)experts\.")
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def are_experts_of(layout: str, names: Iterable[str]) -> bool:
    """Whether every tensor of experts has a name of this arrangement, one that `STACKS` speaks of."""
    return all(_NAMES_OF[layout](name) is not None for name in names if _NAMED.search(name))


_NAMES_OF = {"hf": expert_name, "uqff": stack_name}
STACKS = {("hf", "uqff"): True, ("uqff", "hf"): False}
"""Arrangements that become another without loss: whether by stacking experts, or by cutting stacks."""


def expert_layout(manifest: Manifest, read: Read, usual: str) -> str:
    """The arrangement, `usual` where names do not tell; empty for a model without experts."""
    if any(_STACKED.search(name) for name in manifest.entries):
        return "mlx"
    names = [name for name in manifest.entries if _NAMED.search(name)]
    if names and usual in _NAMES_OF:
        return next((layout for layout in (usual, *_NAMES_OF) if are_experts_of(layout, names)), usual)
    return usual if names or _configured(manifest, read) else ""


def _configured(manifest: Manifest, read: Read) -> bool:
    """Whether config.json counts experts, itself or in a part such as `text_config`."""
    text = manifest.files.get(CONFIG_JSON)
    config = strict_json.loads(text if isinstance(text, bytes) else read(text), file=CONFIG_JSON) if text is not None else None
    parts = [config, *config.values()] if isinstance(config, dict) else []
    counts = [part.get(key) for part in parts if isinstance(part, dict) for key in _COUNTS]
    return any(type(count) is int and count > 1 for count in counts)
