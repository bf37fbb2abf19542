"""What a tensor is, how it is encoded, and one tensor in its stored form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flyweight.dtypes import DType
from flyweight.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RAW", "CodecSpec", "EncodedTensor", "Layout", "Param", "TensorSpec", "has_rows"]

Param = bool | int | float | str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type: of a whole tensor, or of one stored part of it."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array stored plainly, rows tightly packed."""
        return self.dtype.nbytes(self.size)

    @property
    def rows(self) -> int:
        """Number of rows when everything but the last axis is flattened; a scalar is one row of one."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


Layout = Mapping[str, TensorSpec]
"""The parts a codec stores for one tensor: name, element type and shape of each."""


def has_rows(spec: TensorSpec, parts: Layout) -> bool:
    """Whether row r of every part holds exactly row r of the tensor, so that rows can be moved and decoded alone.

    Known from the shapes, so it holds for codecs nobody here can decode as well.
    """
    return len(spec.shape) > 0 and all(
        len(part.shape) == len(spec.shape) and part.shape[:-1] == spec.shape[:-1] and part.dtype.bits % 8 == 0
        for part in parts.values()
    )


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """A codec as data: its name and parameters. Containers know codecs only in this form."""

    name: str
    params: Mapping[str, Param] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.params.items()))))

    def __str__(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.params.items())
        return f"{self.name}({inner})" if inner else self.name

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "params": dict(self.params)}

    @classmethod
    def foreign(cls, method: str, told_by: str) -> CodecSpec:
        """Of an array that looks plain but belongs to a quantization method nobody here reads: alone its values mean nothing.

        `told_by` is the file or the tensor that says so. No codec has this name, so such arrays are listed and copied, never
        decoded.
        """
        return cls(_FOREIGN, {"method": method, "told_by": told_by})

    @property
    def is_foreign(self) -> bool:
        return self.name == _FOREIGN

    def unreadable(self) -> UnsupportedError:
        """Why values stored in a codec that is not known here cannot be had."""
        if not self.is_foreign:
            hint = "the tensor can be copied, not decoded"
            return UnsupportedError(f"no codec named '{self.name}'", code="E_UNKNOWN_CODEC", hint=hint)
        method, told_by = (self.params.get(key, "unknown") for key in ("method", "told_by"))
        return UnsupportedError(
            f"the weights are quantized by a method that is not read here: {method} (told by '{told_by}')",
            code="E_QUANT_METHOD",
            hint="dequantize the model with the tool that made it; as it is, it can be inspected, and copied to another "
            "Hugging Face directory",
        )


_FOREIGN = "foreign"
RAW = CodecSpec("raw")


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTensor:
    """One tensor as stored: its parts are named typed arrays, views on the file where alignment allows."""

    spec: TensorSpec
    codec: CodecSpec
    parts: Mapping[str, np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())
