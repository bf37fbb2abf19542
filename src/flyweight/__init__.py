"""Flyweight: the ffmpeg of model weights.

    import flyweight

    with flyweight.open("model.gguf") as checkpoint:       # any format; nothing is read yet
        checkpoint["blk.0.attn_q.weight"]                  # one tensor, decoded
        checkpoint.encoded("blk.0.attn_q.weight")          # as stored, zero-copy
        checkpoint.manifest                                # everything the file says

    flyweight.convert("model.gguf", "model-hf", dtype="bf16")
    plan = flyweight.plan("model.gguf", "model-4bit", to="mlx", quant="int4")     # plan.save("plan.json")
    flyweight.execute(plan, "model-4bit")                  # later: flyweight.Plan.load("plan.json")
    flyweight.verify("model-hf")
    flyweight.diff("model.gguf", "model-hf")

    flyweight.create_delta("base-hf", "tuned-hf", "tuned.wdelta")      # a fine-tune as its exact difference
    flyweight.open("base-hf", deltas=["tuned.wdelta"])     # a checkpoint like any other

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
    from flyweight.pipeline import Plan, convert, diff, execute, extract, verify  # as `api` and `tiers` have them
    from flyweight.pipeline.conversion import plan
    from flyweight.pipeline.deltas.adapters import export_adapter, import_adapter
    from flyweight.pipeline.deltas.applying import apply_delta, squash_deltas
    from flyweight.pipeline.deltas.creating import create_delta
    from flyweight.pipeline.deltas.delta_check import verify_delta

__version__ = "0.1.0"
__all__ = [
    "Checkpoint",
    "Extras",
    "FlyweightError",
    "Plan",
    "__version__",
    "apply_delta",
    "convert",
    "create_delta",
    "diff",
    "execute",
    "export_adapter",
    "extract",
    "import_adapter",
    "open",
    "plan",
    "squash_deltas",
    "verify",
    "verify_delta",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "Checkpoint": "checkpoint:Checkpoint",
        "Extras": "containers.squizd.squizd_options:Extras",
        "FlyweightError": "foundation.errors:FlyweightError",
        "Plan": "pipeline.plans.plan:Plan",
        "apply_delta": "pipeline.deltas.applying:apply_delta",
        "convert": "api:convert",
        "create_delta": "pipeline.deltas.creating:create_delta",
        "diff": "tiers:diff",
        "execute": "api:execute",
        "export_adapter": "pipeline.deltas.adapters:export_adapter",
        "extract": "pipeline:extract",
        "import_adapter": "pipeline.deltas.adapters:import_adapter",
        "open": "checkpoint:open_checkpoint",
        "plan": "pipeline.conversion:plan",
        "squash_deltas": "pipeline.deltas.applying:squash_deltas",
        "verify": "tiers:verify",
        "verify_delta": "pipeline.deltas.delta_check:verify_delta",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
