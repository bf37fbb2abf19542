"""What is checked of arrays before a kernel runs: a kernel itself never fails."""

from __future__ import annotations

from typing import Any

import numpy as np

from flyweight.foundation.dtypes import DType

__all__ = [
    "F16", "F32", "F64", "I32", "U8", "U16", "U32", "U64", "Array", "check", "check_group", "check_numbers", "check_stream",
    "check_values", "is_bf16",
]  # fmt: skip

Array = np.ndarray[Any, Any]

U8, U16, U32, U64 = (np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64))
I32 = np.dtype(np.int32)
F16, F32, F64 = (np.dtype(kind) for kind in (np.float16, np.float32, np.float64))


def check(label: str, array: Array, dtype: np.dtype[Any], shape: tuple[int | None, ...], written: bool = False) -> None:
    """Type, shape (None = any), and memory a pointer can walk; TypeError or ValueError if not."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise TypeError(f"{label} must be an array of {dtype}, not {getattr(array, 'dtype', type(array).__name__)}")
    if array.ndim != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, array.shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{label} must have shape ({wanted}), not {array.shape}")
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        raise ValueError(f"{label} must be C-contiguous and aligned")
    if written and not flags.writeable:
        raise ValueError(f"{label} is read-only")


def is_bf16(array: object) -> bool:
    """Whether it is an array of bf16, which NumPy itself does not have: only then is the package imported that does."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "V" and array.dtype == DType.BF16.numpy


def check_values(out: Array, shape: tuple[int | None, int | None]) -> Array:
    """Decoded values to fill in, f32 or bf16, as kernels take it: bf16 as its bits."""
    narrow = is_bf16(out)
    check("out", out, out.dtype if narrow else F32, shape, written=True)
    return out.view(U16) if narrow else out


def check_numbers(values: Array, shape: tuple[int | None, int | None]) -> Array:
    """Values to encode, f32 or bf16, as kernels take them: bf16 as its bits."""
    narrow = is_bf16(values)
    check("values", values, values.dtype if narrow else F32, shape)
    return values.view(U16) if narrow else values


def check_stream(bits: int, count: int, nbytes: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be 1 to 8, not {bits}")
    if count * bits > nbytes * 8:
        raise ValueError(f"{count} codes of {bits} bits do not fit in rows of {nbytes} bytes")


def check_group(group: int) -> None:
    if group < 1:
        raise ValueError(f"group must be at least 1, not {group}")
