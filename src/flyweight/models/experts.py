"""Mixtures of experts: whether a checkpoint is one, and in whose arrangement.

    hf    …experts.7.up_proj.weight, a matrix for each expert, or …experts.gate_up_proj, as the family has it
    mlx   …switch_mlp.up_proj.weight, the experts of a layer stacked; in some families under the names of hf

There is no translation between the two yet, and a loader that wants one refuses the other's names.
"""

from __future__ import annotations

import re

from flyweight.foundation import strict_json
from flyweight.foundation.manifest import Manifest
from flyweight.models.dialects.contract import Read
from flyweight.models.model_config import CONFIG_JSON

_STACKED = re.compile(r"(^|\.)switch_(mlp|glu)\.")
_NAMED = re.compile(r"(^|\.)experts\.")
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def expert_layout(manifest: Manifest, read: Read, usual: str) -> str:
    """The arrangement, `usual` where names do not tell; empty for a model without experts."""
    if any(_STACKED.search(name) for name in manifest.entries):
        return "mlx"
    return usual if any(_NAMED.search(name) for name in manifest.entries) or _configured(manifest, read) else ""


def _configured(manifest: Manifest, read: Read) -> bool:
    """Whether config.json counts experts, itself or in a part such as `text_config`."""
    text = manifest.files.get(CONFIG_JSON)
    config = strict_json.loads(text if isinstance(text, bytes) else read(text), file=CONFIG_JSON) if text is not None else None
    parts = [config, *config.values()] if isinstance(config, dict) else []
    counts = [part.get(key) for part in parts if isinstance(part, dict) for key in _COUNTS]
    return any(type(count) is int and count > 1 for count in counts)
