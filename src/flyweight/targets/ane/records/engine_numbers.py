"""The engine's numbers: f16 with ties away from zero, and two floats of 8 bits.

    E4M3   1.4.3, bias 7, no infinity: 0x7e is 448, 0x7f NaN. What is too large becomes 0x7e or 0x7f, a mode of the DMA
    E5M2   the high byte of an f16: widening shifts left by 8 bits, narrowing rounds to nearest even, up to infinity

The guide says that results are rounded to the nearest f16, ties to even (M1). The M6 study measured ties away from zero on M4
and M6; with them the activation records give the errors that it measured (`activation_record`).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flyweight.foundation.dtypes import DType

Array = np.ndarray[Any, Any]
Ties = Literal["away", "even"]
Overflow = Literal["saturate", "nan"]

E4M3_MAX = 448.0
_E4M3_NAN = 0x7F
_LEAST_EXPONENT = -14  # of normal f16 numbers
_MANTISSA = 10
_LIMIT = 65536.0


def round_f16(values: Array | float, ties: Ties = "away") -> Array:
    """The nearest f16 of each value, as float64; from half a step above 65504 on infinity."""
    wide = np.asarray(values, np.float64)
    if ties == "even":
        with np.errstate(over="ignore"):
            return np.asarray(wide.astype(np.float16), np.float64)
    step = f16_ulp(wide)
    rounded = np.copysign(np.floor(np.abs(wide) / step + 0.5) * step, wide)
    bounded: Array = np.where(np.abs(rounded) >= _LIMIT, np.copysign(np.inf, rounded), rounded)
    return bounded


def f16_ulp(values: Array) -> Array:
    """The unit in the last place: the distance between neighbouring f16 numbers at each value."""
    ulp: Array = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, _LEAST_EXPONENT) - _MANTISSA)
    return ulp


def as_engine_reads(values: Array) -> Array:
    """f16 inputs as the engine decodes them, float64: exponent 31 is no exception, so infinity is 65536. NaN counts as +∞."""
    wide = np.asarray(values, np.float64)
    finite = np.where(np.isnan(wide), np.inf, wide)
    return np.clip(finite, -_LIMIT, _LIMIT)


def to_e4m3(values: Array, overflow: Overflow = "saturate") -> Array:
    """Bytes of the nearest E4M3 numbers, ties to even."""
    wide = np.asarray(values, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        codes = np.clip(wide, -E4M3_MAX, E4M3_MAX).astype(DType.F8_E4M3.numpy).view(np.uint8)
        unbounded = wide.astype(DType.F8_E4M3.numpy).view(np.uint8)
    lost = (unbounded & _E4M3_NAN) == _E4M3_NAN  # NaN, infinite, or rounded to more than 448
    if overflow == "nan":
        return np.where(lost, unbounded, codes)
    return np.where(np.isnan(wide), unbounded, codes)


def from_e4m3(codes: Array) -> Array:
    return np.asarray(codes, np.uint8).view(DType.F8_E4M3.numpy).astype(np.float32)


def to_e5m2(values: Array) -> Array:
    """The high bytes of values rounded to f16, and again to nearest even, in magnitude never above infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        words = np.asarray(values).astype(np.float16).view(np.uint16).astype(np.uint32)
    magnitude = words & 0x7FFF
    rounded = np.minimum((magnitude + 0x7F + (magnitude >> 8 & 1)) & 0xFF00, 0x7C00)
    kept = np.where(magnitude > 0x7C00, (magnitude | 0x200) & 0xFF00, rounded)  # a NaN stays one, quiet
    codes: Array = (kept | (words & 0x8000)) >> 8
    return codes.astype(np.uint8)


def from_e5m2(codes: Array) -> Array:
    return (np.asarray(codes, np.uint8).astype(np.uint16) << 8).view(np.float16)
