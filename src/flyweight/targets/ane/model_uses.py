"""The weights of a model as uses: from its program where the format has one, else every matrix as a linear layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from flyweight.checkpoint import Checkpoint
from flyweight.containers.abilities import KnowsUses
from flyweight.containers.container import Use
from flyweight.foundation.manifest import Entry
from flyweight.targets.ane.weight_use import CONVOLUTIONS, KERNEL_OPS, WeightUse

_CHANNEL_AXES = {"conv_transpose": 1, "matmul": -1}
"""Where output channels are not the first axis. A matmul has them last, unless its operand is transposed."""


def model_uses(checkpoint: Checkpoint, positions: int = 1) -> Iterator[WeightUse]:
    """Floating-point tensors of two axes or more. `positions`: tokens, or pixels, that one pass serves."""
    container = checkpoint.container
    program = container.uses(checkpoint.bundle) if isinstance(container, KnowsUses) else None
    for entry in checkpoint.manifest.entries.values():
        if len(entry.spec.shape) < 2 or not entry.spec.size or entry.spec.dtype.kind != "f":
            continue
        use = strictest(program.get(entry.name, ())) if program is not None else _as_layer(entry)
        yield WeightUse(
            entry.name,
            entry.spec,
            entry.codec,
            use.operation,
            entry.spec.shape[2:] if use.operation in CONVOLUTIONS else (1, 1),
            use.strides,
            use.dilations,
            use.groups,
            _CHANNEL_AXES.get(use.operation, 0),
            is_symmetric=_is_symmetric(checkpoint, entry),
            positions=positions,
        )


def strictest(uses: Sequence[Use]) -> Use:
    """Of several operations the one that asks the most of the engine: a kernel's, of the widest stride."""

    def asks(use: Use) -> tuple[bool, int, int]:
        return use.operation in KERNEL_OPS, prod(use.strides), prod(use.dilations)

    return max(uses, key=asks, default=Use("nothing"))


def _as_layer(entry: Entry) -> Use:
    """A matrix is a linear layer, as is each of a stack; four axes are a convolution, whose strides no checkpoint has."""
    return Use("conv" if len(entry.spec.shape) == 4 else "linear")


def _is_symmetric(checkpoint: Checkpoint, entry: Entry) -> bool:
    """Whether all zero points are 0. Some formats store them always, so that their being there means nothing."""
    offsets = [name for name in entry.parts if name.rpartition(".")[2] == "offset"]
    if not offsets:
        return True
    parts = checkpoint.encoded(entry.name).parts
    return not any(parts[name].any() for name in offsets)
