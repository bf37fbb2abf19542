"""What a tensor is, how it is encoded, and one tensor in its stored form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import isfinite, prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Union

from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_CODEC_DEPTH, MAX_CODEC_PARAMS, MAX_CODEC_TEXT

if TYPE_CHECKING:
    import numpy as np

Param = Union[bool, int, float, str, "CodecSpec"]


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

    A scalar belongs to all rows. Known from the shapes, so it holds for codecs nobody here can decode as well.
    """
    by_row = [part for part in parts.values() if part.shape]
    return bool(spec.shape and by_row) and all(
        len(part.shape) == len(spec.shape) and part.shape[:-1] == spec.shape[:-1] and part.dtype.bits % 8 == 0
        for part in by_row
    )


def rows_encode_alone(spec: TensorSpec, parts: Layout) -> bool:
    """Whether rows can be encoded without the others too: they share no scalar."""
    return has_rows(spec, parts) and all(part.shape for part in parts.values())


def code_stream(shape: tuple[int, ...], bits: int) -> TensorSpec:
    """Bytes that hold one stream of codes over a whole array: those of a matrix by rows, where rows are whole bytes; else flat.

    A matrix alone, because its rows keep their meaning when they are cut out: an axis before the last may have blocks.
    """
    if len(shape) == 2 and shape[1] * bits % 8 == 0:
        return TensorSpec((shape[0], shape[1] * bits // 8), DType.U8)
    return TensorSpec((-(-prod(shape) * bits // 8),), DType.U8)


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """A codec as data: its name and parameters. Containers know codecs only in this form.

    A parameter may be the spec of another codec, at most MAX_CODEC_DEPTH deep in all:

        >>> print(CodecSpec("masked", {"block": 64, "inner": CodecSpec("affine", {"bits": 4})}))
        masked(block=64, inner=affine(bits=4))
    """

    name: str
    params: Mapping[str, Param] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        if self.depth > MAX_CODEC_DEPTH:
            raise ValueError(f"codecs are nested {self.depth} deep, more than {MAX_CODEC_DEPTH}")

    @property
    def depth(self) -> int:
        """1, and 1 more for every codec inside the other."""
        return 1 + max((value.depth for value in self.params.values() if isinstance(value, CodecSpec)), default=0)

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.params.items())))

    def __str__(self) -> str:
        shown = sorted(self.params.items(), key=lambda param: isinstance(param[1], CodecSpec))  # what is nested comes last
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in shown)})" if shown else self.name

    def integer(self, key: str, default: int | None = None) -> int:
        """A parameter that is an integer; MalformedError if it is none, or is not there and has no default."""
        value = self.params.get(key, default)
        if type(value) is not int:
            raise MalformedError(f"parameter '{key}' of {self.name} must be an integer", code="E_CODEC_PARAMS")
        return value

    def with_params(self, **params: Param) -> CodecSpec:
        """The same codec with some parameters replaced."""
        return CodecSpec(self.name, {**self.params, **params})

    def as_json(self) -> dict[str, Any]:
        params = {key: value.as_json() if isinstance(value, CodecSpec) else value for key, value in self.params.items()}
        return {"name": self.name, "params": params}

    @classmethod
    def read(cls, document: object, *, code: str) -> CodecSpec:
        """The inverse of `as_json`, of JSON that a stranger wrote: MalformedError with `code` for what is no codec.

        Earlier versions wrote the parameter `inner` as the JSON text of a spec; that is read as the spec it stands for.
        """
        try:
            return _read(document, count(1), 1)
        except (ValueError, RecursionError) as error:
            raise MalformedError(f"not a codec: {error}", code=code) from None

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
            f"the weights are quantized by an unsupported method: {method} (detected by '{told_by}')",
            code="E_QUANT_METHOD",
            hint="dequantize the model with the tool that quantized it; as it is, it can be inspected, and copied to another "
            "Hugging Face directory",
        )


_FOREIGN = "foreign"
RAW = CodecSpec("raw")


def _read(document: object, counted: Iterator[int], depth: int) -> CodecSpec:
    match document:
        case {"name": str(name), "params": dict(params), **rest} if not rest and _is_short(name):
            return CodecSpec(name, {key: _read_param(key, value, counted, depth) for key, value in params.items()})
    raise ValueError("it must have exactly name and params")


def _read_param(key: str, value: object, counted: Iterator[int], depth: int) -> Param:
    if next(counted) > MAX_CODEC_PARAMS or not _is_short(key):
        raise ValueError(f"it may have at most {MAX_CODEC_PARAMS} params, with names of at most {MAX_CODEC_TEXT} bytes")
    match value:
        case dict() if depth < MAX_CODEC_DEPTH:
            return _read(value, counted, depth + 1)
        case str() if _is_short(value) and key == "inner" and value.startswith("{"):  # as earlier versions wrote it
            return _read_param(key, json.loads(value, object_pairs_hook=_unique), counted, depth)
        case str() if _is_short(value):
            return value
        case bool():
            return value
        case int() if abs(value) < 2**64:
            return value
        case float() if isfinite(value):
            return value
    raise ValueError(f"param '{key}' is neither a plain value nor a codec, nested at most {MAX_CODEC_DEPTH} deep")


def _is_short(text: str) -> bool:
    """ValueError for text that is not UTF-8, which escapes in JSON within JSON can make."""
    return len(text.encode()) <= MAX_CODEC_TEXT


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(unique := dict(pairs)) < len(pairs):
        raise ValueError("a key appears twice")
    return unique


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTensor:
    """One tensor as stored: its parts are named typed arrays, views on the file where alignment allows."""

    spec: TensorSpec
    codec: CodecSpec
    parts: Mapping[str, np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())
