"""Checks of the arguments of `convert` and the other functions, before anything is opened."""

from __future__ import annotations

import os
from pathlib import Path

from flyweight.foundation.dtypes import DType
from flyweight.foundation.limits import parse_size
from flyweight.sources import local_path

_MOST_JOBS = 1024
_DTYPE_NAMES = {
    "float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "fp32": "f32", "float16": "f16", "half": "f16",
    "fp16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3", "float8_e5m2": "f8_e5m2",
}  # fmt: skip
"""What torch, NumPy and others call the types that a user may ask for."""


def as_path(name: str, path: Path | str) -> Path:
    """A path, and no URL; bytes would name the same file, but not in a message or a report."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"{name} must be a path, not {type(path).__name__}")
    return local_path(path)


def as_size(name: str, size: int | str | None) -> int | None:
    """Bytes: a number, or text such as `5G`."""
    return None if size is None else parse_size(size, name)


def as_count(name: str, count: int | None) -> int | None:
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name} must be an integer, not {type(count).__name__}")
    if not 1 <= count <= _MOST_JOBS:
        raise ValueError(f"{name} must be 1 to {_MOST_JOBS}, not {count}")
    return count


def check_name(name: str, value: str | None) -> None:
    """A name of something, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a name, not {type(value).__name__}")


def as_dtype(dtype: DType | str | None) -> DType | None:
    """An element type by one of its names: `bf16`, `bfloat16`, `torch.bfloat16`."""
    if dtype is None or isinstance(dtype, DType):
        return dtype
    if not isinstance(dtype, str):
        raise TypeError(f"dtype must be a name such as 'bf16', not {type(dtype).__name__}")
    return dtype_named(dtype) or DType.parse(_label(dtype))


def dtype_named(name: str) -> DType | None:
    """The element type that a name means here, in torch or in NumPy, if it means one."""
    label = _label(name)
    return next((dtype for dtype in DType if dtype.label == label), None)


def _label(name: str) -> str:
    bare = name.lower()
    for library in ("torch.", "numpy.", "np.", "mx.", "ml_dtypes."):
        bare = bare.removeprefix(library)
    return _DTYPE_NAMES.get(bare, bare)
