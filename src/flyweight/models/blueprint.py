"""What a runtime needs to know of a checkpoint: its settings, and where each tensor of the model lies.

Tensors are asked for by their canonical names, whatever the checkpoint calls them. Values stay as they are stored; where they
differ from the canonical ones, the blueprint says so instead of changing them:

    pairs   the rows of q and k lie interleaved, so RoPE turns neighbours (2j, 2j + 1) instead of halves (j, j + d/2)
    gain    what must be added to the weights of a norm before they multiply
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flyweight.manifest import Manifest
from flyweight.models.dialects.contract import Read
from flyweight.models.model_config import Config
from flyweight.models.translation import read_model

__all__ = ["Blueprint", "blueprint"]


class Blueprint(NamedTuple):
    config: Config
    tensors: Mapping[str, str]
    """Canonical name → name in the checkpoint."""
    pairs: bool
    gain: float


def blueprint(manifest: Manifest, read: Read) -> Blueprint:
    """The blueprint of a checkpoint of a known family, every tensor there and of the right shape; else a typed error."""
    model = read_model(manifest, read)
    return Blueprint(
        model.config,
        {name: stored.name for name, stored in model.tensors.items()},
        pairs=any(stored.heads for stored in model.tensors.values()),
        gain=model.config.family.graph.norm_offset - model.tensors["model.norm.weight"].add,
    )
