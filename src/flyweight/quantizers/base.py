"""The contract of a quantizer: a way to fill the parts of a codec, better or faster than nearest rounding.

A quantizer never changes what the bytes mean: whatever it returns, the codec decodes.
"""

from __future__ import annotations

from typing import Protocol

from flyweight.codecs import Array, Codec, Parts
from flyweight.errors import UnsupportedError
from flyweight.tensor import TensorSpec

__all__ = ["Quantizer", "require_unweighted"]


class Quantizer(Protocol):
    def __call__(self, array: Array, codec: Codec, spec: TensorSpec, importance: Array | None = None) -> Parts:
        """Parts of `codec` for `array`. `importance` weighs the error of each column, where the quantizer can use it."""


def require_unweighted(importance: Array | None) -> None:
    """For quantizers that treat every weight alike: asking them for more is refused, never ignored."""
    if importance is not None:
        raise UnsupportedError("this quantizer cannot use importance weights", code="E_IMPORTANCE")
