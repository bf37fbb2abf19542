"""Casts between element types, with NumPy's rounding; native between f32 and the 16-bit floats.

Casting to a narrower float rounds to nearest, ties to even, and to infinity beyond its range. A NaN stays a quiet NaN
(`kernels.streams.float_casts` has its bits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs.codec import Array
from flyweight.foundation.dtypes import DType


@cache
def _kernels() -> Mapping[tuple[np.dtype[Any], np.dtype[Any]], Callable[[Array, Array], None]]:
    return {
        (DType.BF16.numpy, DType.F32.numpy): kernels.bf16_to_f32,
        (DType.F32.numpy, DType.BF16.numpy): kernels.f32_to_bf16,
        (DType.F16.numpy, DType.F32.numpy): kernels.f16_to_f32,
        (DType.F32.numpy, DType.F16.numpy): kernels.f32_to_f16,
    }


def astype(array: Array, dtype: np.dtype[Any]) -> Array:
    """`array` as `dtype`, C-contiguous and aligned: itself where it is that already."""
    kernel = _kernels().get((array.dtype, dtype))
    if kernel is None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return np.require(array, dtype, ["C", "A"])
    out = np.empty(array.shape, dtype)
    kernel(np.require(array, requirements=["C", "A"]).reshape(1, -1), out.reshape(1, -1))
    return out


def cast_into(array: Array, out: Array) -> None:
    """`array` as the type of `out`, into it; both are contiguous."""
    kernel = _kernels().get((array.dtype, out.dtype))
    if kernel is None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.copyto(out, array, casting="unsafe")
    else:
        kernel(np.require(array, requirements=["C", "A"]).reshape(1, -1), out.reshape(1, -1))


def cast_runs_into(runs: Iterable[Array], out: Array) -> None:
    """Values in order, run after run, as the type of `out`, into it."""
    flat, at = out.reshape(-1), 0
    for run in runs:
        cast_into(run, flat[at : at + run.size])
        at += run.size


def as_float(array: Array) -> Array:
    """`array` as f32, or as the bf16 it is: the encoders of kernels take both."""
    given = np.asarray(array)
    return astype(given, given.dtype if given.dtype == DType.BF16.numpy else DType.F32.numpy)
