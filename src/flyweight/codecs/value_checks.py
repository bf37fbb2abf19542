"""Checks of codec parameters and of values to encode, each rule stated once."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from flyweight.codecs.codec import Array, Codec, Parts
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec

FLOATS = {"f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16}
"""The types that scales, factors and tables may have."""


def require_integers(codec: Codec, *names: str, least: int = 0, most: int = 2**31 - 1, zero: str = "") -> None:
    """ValueError unless these parameters are integers in a range; `zero` says what a 0 stands for, where that is special."""
    for name in names:
        value = getattr(codec, name)
        if type(value) is not int or not least <= value <= most:
            special = f" (0: {zero})" if zero else ""
            raise ValueError(f"{name} must be an integer from {least} to {most}{special}, not {value!r}")


def require_one_of(codec: Codec, **known: Collection[object]) -> None:
    """ValueError unless each of these parameters is one of the values named for it. 1 is not true, and 4.0 not 4."""
    for name, values in known.items():
        value = getattr(codec, name)
        if type(value) not in set(map(type, values)) or value not in values:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, values))}, not {value!r}")


def require_f32(codec: Codec, spec: TensorSpec, least_rank: int = 1) -> None:
    """UnsupportedError unless a tensor is of f32, to which the codec decodes, and not a scalar."""
    if len(spec.shape) < least_rank or spec.dtype is not DType.F32:
        rank = f" of rank {least_rank} or more" if least_rank else ""
        raise UnsupportedError(f"{codec.name} decodes to f32{rank}, not to {spec}", code="E_SPEC")


def require_marks(part: str, mask: Array, columns: int, count: int) -> None:
    """MalformedError unless so many bits are set in a mask, (rows, bytes), none of them behind the columns of a row."""
    if int(np.bitwise_count(mask).sum(dtype=np.int64)) != count:
        raise MalformedError(f"the {part} does not mark {count} values", code="E_PART_VALUES")
    if np.unpackbits(mask[:, columns // 8 :], axis=1, bitorder="little")[:, columns % 8 :].any():
        raise MalformedError(f"the {part} marks values behind the end of a row", code="E_PART_VALUES")


def require_finite(are: bool | np.bool) -> None:
    """UnsupportedError unless all weights are finite: no code stands for another."""
    if not are:
        raise UnsupportedError("NaN and infinite weights cannot be quantized", code="E_NONFINITE")


def complaint_about_values(codec: Codec, spec: TensorSpec, parts: Parts) -> str | None:
    """For codecs that keep every bit, whose parts may be anything: what they decode to is judged like a plain tensor."""
    try:
        values = codec.decode(spec, parts)
    except MalformedError as error:
        return error.message
    with np.errstate(invalid="ignore"):
        return None if np.isfinite(values).all() else "the tensor holds NaN or infinite values"
