"""The definition of the casts between f32 and the two sixteen-bit floats, in NumPy.

Sixteen-bit floats come and go as their bits, uint16: bf16 has no array type every library knows. Widening is exact. Narrowing
rounds to nearest, ties to even; magnitudes beyond the range become infinite. A NaN stays a quiet NaN of its sign:

    f32 → bf16   7fc0, as ml_dtypes has it          bf16 → f32   the bits as they are
    f32 → f16    the upper ten bits of the payload  f16 → f32    the same bits, quiet
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__: list[str] = []  # named by `flyweight.kernels.KERNELS`

Array = np.ndarray[Any, Any]


def bf16_to_f32(values: Array, out: Array) -> None:
    np.left_shift(values, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def f32_to_bf16(values: Array, out: Array) -> None:
    bits = values.view(np.uint32)
    out[...] = bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1)) >> 16
    nan = np.isnan(values)
    out[nan] = bits[nan] >> 16 & 0x8000 | 0x7FC0


def f16_to_f32(values: Array, out: Array) -> None:
    halves = values.view(np.float16)
    out[...] = halves
    nan = np.isnan(halves)
    bits = values[nan].astype(np.uint32)
    out.view(np.uint32)[nan] = (bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13


def f32_to_f16(values: Array, out: Array) -> None:
    out.view(np.float16)[...] = values
    nan = np.isnan(values)
    bits = values.view(np.uint32)[nan]
    out[nan] = bits >> 16 & 0x8000 | 0x7E00 | bits >> 13 & 0x3FF
