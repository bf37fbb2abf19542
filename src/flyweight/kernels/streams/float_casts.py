"""Casts between f32 and the two sixteen-bit floats.

Kernels take and give sixteen-bit floats as their bits, uint16: bf16 has no array type every library knows. Widening is exact.
Narrowing rounds to nearest, ties to even; magnitudes beyond the range become infinite. A NaN stays a quiet NaN of its sign:

    f32 → bf16   7fc0, as ml_dtypes has it          bf16 → f32   the bits as they are
    f32 → f16    the upper ten bits of the payload  f16 → f32    the same bits, quiet
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, cast

import numpy as np

from flyweight.foundation.dtypes import DType
from flyweight.kernels.checks import F32, U16, Array, check
from flyweight.kernels.registry import Kernel, kernel

P = ParamSpec("P")


@kernel
def _bf16_to_f32(values: Array, out: Array) -> None:
    np.left_shift(values, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


@kernel
def _f32_to_bf16(values: Array, out: Array) -> None:
    bits = values.view(np.uint32)
    out[...] = bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1)) >> 16
    nan = np.isnan(values)
    out[nan] = bits[nan] >> 16 & 0x8000 | 0x7FC0


@kernel
def _f16_to_f32(values: Array, out: Array) -> None:
    halves = values.view(np.float16)
    out[...] = halves
    nan = np.isnan(halves)
    bits = values[nan].astype(np.uint32)
    out.view(np.uint32)[nan] = (bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13


@kernel
def _f32_to_f16(values: Array, out: Array) -> None:
    out.view(np.float16)[...] = values
    nan = np.isnan(values)
    bits = values.view(np.uint32)[nan]
    out[nan] = bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x3FF


def _checked(registered: Kernel[[Array, Array]], have: DType, want: DType) -> Callable[[Array, Array], None]:
    def convert(values: Array, out: Array) -> None:
        check("values", values, have.numpy, (None, None))
        check("out", out, want.numpy, values.shape, written=True)
        registered.run(*(array if array.dtype == F32 else array.view(U16) for array in (values, out)))

    convert.__name__ = convert.__qualname__ = registered.name
    convert.__doc__ = f"{have} to {want}, to nearest. values and out: (rows, columns)."
    return convert


bf16_to_f32 = _checked(_bf16_to_f32, DType.BF16, DType.F32)
f32_to_bf16 = _checked(_f32_to_bf16, DType.F32, DType.BF16)
f16_to_f32 = _checked(_f16_to_f32, DType.F16, DType.F32)
f32_to_f16 = _checked(_f32_to_f16, DType.F32, DType.F16)


def also_to_bf16(definition: Callable[P, None]) -> Callable[P, None]:
    """A definition that fills its last array, f32, may be given one of bf16 (as bits): the same values, rounded."""

    to_f32 = cast("Callable[..., None]", definition)

    @wraps(definition)
    def decode(*arguments: Any) -> None:
        *rest, out = arguments
        if out.dtype == F32:
            to_f32(*rest, out)
        else:
            values = np.empty(out.shape, np.float32)
            to_f32(*rest, values)
            _f32_to_bf16.definition(values, out)

    return cast("Callable[P, None]", decode)


def also_from_bf16(definition: Callable[P, None]) -> Callable[P, None]:
    """A definition that reads its first array, f32, may be given one of bf16 (as bits): the same values."""

    from_f32 = cast("Callable[..., None]", definition)

    @wraps(definition)
    def encode(values: Array, *rest: Any) -> None:
        from_f32(widened(values), *rest)

    return cast("Callable[P, None]", encode)


def widened(values: Array) -> Array:
    """f32 of f32 or f16, or of the bits of bf16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
