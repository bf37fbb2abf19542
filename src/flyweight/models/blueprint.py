"""What a runtime needs to know of a checkpoint: its settings, and where each tensor of the model lies.

Tensors are asked for by their HF names, whatever the checkpoint calls them. Values stay as they are stored; where GGUF stores
them differently, the blueprint says so instead of changing them:

    pairs   the rows of q and k lie interleaved, so RoPE turns neighbours (2j, 2j + 1) instead of halves (j, j + d/2)
    gain    what must be added to the weights of a norm: Gemma multiplies by 1 + w, of which GGUF stores the sum
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

from flyweight.manifest import Manifest
from flyweight.models.config import Config, implied_scalar
from flyweight.models.translation import Read, read_settings

__all__ = ["Blueprint", "blueprint"]


class Blueprint(NamedTuple):
    config: Config
    tensors: Mapping[str, str]
    """HF name → name in the checkpoint."""
    pairs: bool
    gain: float

    def window(self, layer: int) -> int:
        """How many positions back a layer sees, its own counted; 0 for all."""
        config, extra = self.config, self.config.extra
        if config.family.window:
            return int(config.values["sliding_window"]) if (layer + 1) % config.period else 0
        if "use_sliding_window" in config.family.unheld:
            windowed = extra.get("use_sliding_window") and layer >= (extra.get("max_window_layers") or 0)
            return int(extra.get("sliding_window") or 0) if windowed else 0
        return int(config.values.get("sliding_window") or extra.get("sliding_window") or 0)

    @property
    def attention_scale(self) -> float:
        config = self.config
        if not config.family.wide_layers:
            return 1 / sqrt(config.dims.head)
        given = config.extra.get("query_pre_attn_scalar")
        implied = implied_scalar(config.family, config.dims)
        return 1 / sqrt(implied if given is None else given)

    def theta(self, layer: int) -> float:
        """The base of a layer's RoPE."""
        local = self.config.values.get("rope_local_base_freq")
        return float(local) if local is not None and self.window(layer) else self.config.theta


def blueprint(manifest: Manifest, read: Read) -> Blueprint:
    """The blueprint of a checkpoint of a known family, every tensor there and of the right shape; else a typed error."""
    model = read_settings(manifest, read)
    gguf = manifest.dialect == "gguf"
    rules = model.config.family.tensors
    names = {renamed.name: name for name, renamed in model.tensors.items()} if gguf else {name: name for name in model.tensors}
    return Blueprint(
        model.config,
        names,
        pairs=gguf and any(rule.interleaved for rule in rules),
        gain=0.0 if gguf else max((rule.add for rule in rules), default=0.0),
    )
