"""A checkpoint opened for use: a lazy mapping from tensor name to array, whatever the format."""

from flyweight.checkpoint.checkpoint import Checkpoint, as_array, open_checkpoint, read_checkpoint, without_collector

__all__ = ["Checkpoint", "as_array", "open_checkpoint", "read_checkpoint", "without_collector"]
