"""The weights of a model as uses: from the graph where the format has one, else every matrix as a linear layer."""

from __future__ import annotations

from collections.abc import Iterator

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.manifest import Entry
from flyweight.targets.ane.weight_use import WeightUse


def model_uses(checkpoint: Checkpoint, positions: int = 1) -> Iterator[WeightUse]:
    """Tensors of two axes or more. `positions`: tokens, or pixels, that one pass serves."""
    for entry in checkpoint.manifest.entries.values():
        if len(entry.spec.shape) >= 2 and entry.spec.size and entry.spec.dtype.kind == "f":
            yield _as_layer(entry, positions)


def _as_layer(entry: Entry, positions: int) -> WeightUse:
    """A matrix is a linear layer, as is each of a stack; four axes are a convolution, whose strides no checkpoint has."""
    shape = entry.spec.shape
    op, kernel = ("conv", shape[2:]) if len(shape) == 4 else ("linear", (1, 1))
    return WeightUse(entry.name, entry.spec, entry.codec, op, kernel, positions=positions)
