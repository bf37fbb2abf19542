"""`WeightUse`: one weight, how it is stored, and how the model uses it. All that a plan needs to know of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.targets.ane.engine_form import EngineForm, engine_form

CONVOLUTIONS = ("conv", "conv_transpose")
KERNEL_OPS = ("linear", "matmul", *CONVOLUTIONS)
"""Operations whose constant operand is a kernel of the engine; others (a gather, an addition) read theirs as data."""


@dataclass(frozen=True, slots=True)
class WeightUse:
    name: str
    spec: TensorSpec
    codec: CodecSpec
    op: str = "linear"
    kernel: tuple[int, ...] = (1, 1)
    strides: tuple[int, ...] = ()
    """Empty, or of ones: unit stride."""
    dilations: tuple[int, ...] = ()
    groups: int = 1
    channel_axis: int = 0
    """The axis of the output channels."""
    mutable: bool = False
    is_symmetric: bool = True
    """Whether zero points that are stored are 0, all of them."""
    zero_fraction: float | None = None
    """The share of weights that are zero; None: nobody has counted."""
    positions: int = 1
    """Tokens, or pixels of the output, that one use of the weight serves."""

    @property
    def form(self) -> EngineForm | None:
        form = engine_form(self.spec, self.codec, self.channel_axis)
        return replace(form, zero_points=False) if form and self.is_symmetric else form

    @property
    def is_kernel(self) -> bool:
        return self.op in KERNEL_OPS

    @property
    def flops(self) -> int:
        return 2 * self.spec.size * self.positions

    @property
    def unit_stride(self) -> bool:
        return all(stride == 1 for stride in self.strides)

    @property
    def undilated(self) -> bool:
        return all(step == 1 for step in self.dilations)

    @property
    def is_pointwise(self) -> bool:
        return prod(self.kernel) == 1
