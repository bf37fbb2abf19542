"""`delta apply` and `delta squash`: what deltas make of a base, as a model or as one delta."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyweight.checkpoint import open_checkpoint
from flyweight.checkpoint.overlay import Overlay
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import ArgumentError
from flyweight.pipeline.conversion import convert
from flyweight.pipeline.conversion_report import ConversionReport
from flyweight.pipeline.deltas.creating import create_delta
from flyweight.pipeline.deltas.delta_report import CreateReport

Place = Path | str


def apply_delta(
    base: Place,
    deltas: Sequence[Place],
    destination: Place,
    *,
    dtype: DType | str | None = None,
    **options: Any,
) -> ConversionReport:
    """Write the model that `deltas`, in order, make of `base`; `options` are those of `convert`.

    Exact deltas give every stored bit back. Sums have the base's element types, correctly rounded; with a `dtype` all tensors
    are converted to it, sums from f32.
    """
    if not deltas:
        raise ArgumentError("there is no delta to apply")
    return convert(base, destination, deltas=deltas, in_f32=dtype is not None, dtype=dtype, **options)


def squash_deltas(base: Place | None, deltas: Sequence[Place], destination: Place, **options: Any) -> CreateReport:
    """Write one exact delta that makes of a base what `deltas` make of it. Without a base, the first says where it is."""
    if not deltas:
        raise ArgumentError("there is no delta to squash")
    first, rest = (deltas[0], deltas[1:]) if base is None else (base, deltas)
    with open_checkpoint(first, deltas=rest, checks_digests=True) as result:
        below = result
        while isinstance(below, Overlay):
            below = below.base
        return create_delta(below, result, destination, **options)
