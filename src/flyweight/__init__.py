"""Flyweight: the ffmpeg of model weights.

    import flyweight

    with flyweight.open("model.gguf") as checkpoint:       # any format; nothing is read yet
        checkpoint["blk.0.attn_q.weight"]                  # one tensor, decoded
        checkpoint.encoded("blk.0.attn_q.weight")          # as stored, zero-copy
        checkpoint.manifest                                # everything the file says

    flyweight.convert("model.gguf", "model-hf", dtype="bf16")
    flyweight.verify("model-hf")
    flyweight.diff("model.gguf", "model-hf")

Names are imported when first used, so that starting is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flyweight.checkpoint import Checkpoint
    from flyweight.checkpoint import open_checkpoint as open  # noqa: A004
    from flyweight.containers.squizd.extras import Extras
    from flyweight.errors import FlyweightError
    from flyweight.pipeline import convert, diff, extract, verify  # of the types that `api` and `tiers` have them

__version__ = "0.1.0"
__all__ = ["Checkpoint", "Extras", "FlyweightError", "__version__", "convert", "diff", "extract", "open", "verify"]

_HOMES = {
    "Checkpoint": ("flyweight.checkpoint", "Checkpoint"),
    "Extras": ("flyweight.containers.squizd.extras", "Extras"),
    "FlyweightError": ("flyweight.errors", "FlyweightError"),
    "convert": ("flyweight.api", "convert"),
    "diff": ("flyweight.tiers.checking", "diff"),
    "extract": ("flyweight.pipeline", "extract"),
    "open": ("flyweight.checkpoint", "open_checkpoint"),
    "verify": ("flyweight.tiers.checking", "verify"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flyweight' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
