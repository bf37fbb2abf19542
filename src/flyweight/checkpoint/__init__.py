"""A checkpoint opened for use: a lazy mapping from tensor name to array, whatever the format."""

from flyweight.checkpoint.checkpoint import Checkpoint, as_array, read_checkpoint, without_collector
from flyweight.checkpoint.model_opening import open_checkpoint
from flyweight.checkpoint.use_check import gated, needs_gate, recorded, require_passed, subject

__all__ = [
    "Checkpoint",
    "as_array",
    "gated",
    "needs_gate",
    "open_checkpoint",
    "read_checkpoint",
    "recorded",
    "require_passed",
    "subject",
    "without_collector",
]
