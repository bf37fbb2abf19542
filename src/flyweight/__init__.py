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

from typing import TYPE_CHECKING

from flyweight.foundation.lazy_table import lazy_exports

if TYPE_CHECKING:
    from flyweight.checkpoint import Checkpoint
    from flyweight.checkpoint import open_checkpoint as open  # noqa: A004
    from flyweight.containers.squizd.squizd_options import Extras
    from flyweight.foundation.errors import FlyweightError
    from flyweight.pipeline import convert, diff, extract, verify  # of the types that `api` and `tiers` have them

__version__ = "0.1.0"
__all__ = ["Checkpoint", "Extras", "FlyweightError", "__version__", "convert", "diff", "extract", "open", "verify"]

__getattr__ = lazy_exports(
    __name__,
    {
        "Checkpoint": "checkpoint:Checkpoint",
        "Extras": "containers.squizd.squizd_options:Extras",
        "FlyweightError": "foundation.errors:FlyweightError",
        "convert": "api:convert",
        "diff": "tiers:diff",
        "extract": "pipeline:extract",
        "open": "checkpoint:open_checkpoint",
        "verify": "tiers:verify",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
