"""A checkpoint opened for use: a lazy mapping from tensor name to array, whatever the format."""

from flyweight.checkpoint.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
