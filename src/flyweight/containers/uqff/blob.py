"""A layer of UQFF 0.x: one run of bytes without names, little-endian and without padding.

    u32  version                    major << 16 | minor << 8 | patch, of each layer anew
    u8   type
    u32  bytes of the weight        type 0 only
    u8   whether there is a bias    any value but 0
    …    the fields of the type, in order (see `layer_fields`)
    …    the bias, a tensor

A tensor is u32 bytes, u32 code of its element type, u32 rank, u32 per dimension, its bytes. A shape is u32 rank, u32 per
dimension. Bytes stand alone: the fields before say how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flyweight.containers.container import Chunks
from flyweight.containers.uqff.layer_fields import (
    BYTES,
    DIMS,
    F8Q8_NBYTES,
    FIELDS,
    GGUF,
    NUMBERS,
    STANDARD_TYPES,
    TENSOR,
    Layer,
    LayerForm,
    Stored,
    gguf_nbytes,
)
from flyweight.foundation.cursor import SCALARS, Cursor, check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.limits import MAX_RANK
from flyweight.foundation.manifest import Extent
from flyweight.foundation.tensor import TensorSpec
from flyweight.sources import Source

Version = tuple[int, int, int]
_LARGEST = 2**32 - 1
_F32 = TensorSpec((), DType.F32)
_HAS_BIAS = "whether there is a bias"


class Blob(NamedTuple):
    version: Version
    layer: Layer
    bias: Stored | None


# Reading ------------------------------------------------------------------------------------------


def read_blob(source: Source, extent: Extent) -> Blob:
    """A layer, to its last byte."""
    cursor = Cursor(source, extent.offset, extent.end)
    packed = cursor.u32("the version")
    version = packed >> 16, packed >> 8 & 0xFF, packed & 0xFF
    if version[0]:
        raise UnsupportedError(
            f"a layer of version {'.'.join(map(str, version))}; layers without names are of version 0", code="E_VERSION",
            file=source.name, offset=extent.offset,
        )  # fmt: skip
    kind = cursor.u8("the type")
    if kind not in FIELDS:
        raise UnsupportedError(
            f"a layer of type {kind}; known are 0 to {max(FIELDS)}", code="E_LAYER_TYPE", file=source.name, offset=cursor.offset
        )
    nbytes = cursor.u32("the length of the weight") if kind == GGUF else 0
    has_bias = cursor.u8(_HAS_BIAS)
    arrays: dict[str, Stored] = {}
    numbers: dict[str, int] = {}
    shape: tuple[int, ...] = ()
    for field, form in FIELDS[kind].items():
        if form == DIMS:
            shape = _read_shape(cursor)
        elif form == BYTES:
            length = _unwrapped(nbytes, numbers["dtype"], shape) if kind == GGUF else F8Q8_NBYTES * numbers["num_blocks"]
            arrays[field] = _stored(cursor, extent.file, TensorSpec((length,), DType.U8), field)
        elif form == TENSOR:
            arrays[field] = _read_tensor(cursor, extent.file, field)
        elif form in NUMBERS:
            numbers[field] = int(cursor.scalar(form, field))
        else:
            arrays[field] = _stored(cursor, extent.file, _F32, field)
    bias = _read_tensor(cursor, extent.file, "bias") if has_bias else None
    if cursor.remaining:
        raise cursor.malformed(f"{cursor.remaining} bytes after the end of the layer", "E_TRAILING")
    return Blob(version, Layer(kind, arrays, numbers, shape), bias)


def _unwrapped(nbytes: int, code: int, shape: tuple[int, ...]) -> int:
    """The length of a weight of type 0. mistral.rs cut off what is beyond 32 bits of it, without a word."""
    whole = gguf_nbytes(code, shape)
    return whole if whole > _LARGEST and whole % (_LARGEST + 1) == nbytes else nbytes


def _read_shape(cursor: Cursor) -> tuple[int, ...]:
    rank = cursor.count(cursor.u32("the rank"), 4, MAX_RANK, "dimensions")
    return check_shape(cursor.scalars("u32", rank, "the shape"), file=cursor.source.name)


def _read_tensor(cursor: Cursor, file: str, field: str) -> Stored:
    nbytes, code = cursor.u32(f"the length of {field}"), cursor.u32(f"the element type of {field}")
    if code >= len(STANDARD_TYPES):
        raise cursor.malformed(f"{field} has elements of the type {code}; known are 0 to {len(STANDARD_TYPES) - 1}", "E_DTYPE")
    spec = TensorSpec(_read_shape(cursor), STANDARD_TYPES[code])
    if spec.nbytes != nbytes:
        raise cursor.malformed(f"{field} is {spec}, which takes {spec.nbytes} bytes, not {nbytes}", "E_SIZE")
    return _stored(cursor, file, spec, field)


def _stored(cursor: Cursor, file: str, spec: TensorSpec, field: str) -> Stored:
    return Stored(spec, Extent(file, cursor.skip(spec.nbytes, field), spec.nbytes))


# Writing ------------------------------------------------------------------------------------------


class BlobImage(NamedTuple):
    """A layer to write: its bytes without arrays, and where each array belongs."""

    nbytes: int
    chunks: Chunks
    arrays: Mapping[str, int]
    """Field, or "bias" → offset."""


def write_blob(form: LayerForm, version: Version, bias: TensorSpec | None = None) -> BlobImage:
    """UnsupportedError for a tensor that is too large for a length of 32 bits."""
    writer = _Writer()
    major, minor, patch = version
    writer.u32(major << 16 | minor << 8 | patch)
    writer.put(bytes([form.type]))
    if form.type == GGUF:
        writer.length(form.arrays["weight"][1].nbytes)
    writer.put(bytes([bias is not None]))
    for field, kind in FIELDS[form.type].items():
        if kind == DIMS:
            writer.shape(form.shape)
        elif kind == "u8":
            writer.put(form.numbers[field].to_bytes(1, "little"))
        elif kind == "u32":
            writer.u32(form.numbers[field])
        else:
            spec = form.arrays[field][1]
            writer.array(field, spec, described=kind == TENSOR)
    if bias is not None:
        writer.array("bias", bias, described=True)
    return writer.image()


class _Writer:
    def __init__(self) -> None:
        self._nbytes = 0
        self._chunks: list[tuple[int, bytes]] = []
        self._arrays: dict[str, int] = {}
        self._pending = bytearray()

    def put(self, data: bytes) -> None:
        self._pending += data

    def u32(self, value: int) -> None:
        self.put(SCALARS["u32"].pack(value))

    def length(self, value: int) -> None:
        if value > _LARGEST:
            raise UnsupportedError(
                f"it takes {value} bytes, but lengths in UQFF 0.x have 32 bits: at most {_LARGEST}", code="E_LENGTH",
                hint="write UQFF 1.x, with --to uqff",
            )  # fmt: skip
        self.u32(value)

    def shape(self, shape: tuple[int, ...]) -> None:
        self.u32(len(shape))
        for dim in shape:
            self.length(dim)

    def array(self, field: str, spec: TensorSpec, *, described: bool) -> None:
        if described:
            self.length(spec.nbytes)
            self.u32(STANDARD_TYPES.index(spec.dtype))
            self.shape(spec.shape)
        self._flush()
        self._arrays[field] = self._nbytes
        self._nbytes += spec.nbytes

    def _flush(self) -> None:
        if self._pending:
            self._chunks.append((self._nbytes, bytes(self._pending)))
            self._nbytes += len(self._pending)
            self._pending.clear()

    def image(self) -> BlobImage:
        self._flush()
        return BlobImage(self._nbytes, self._chunks, self._arrays)
