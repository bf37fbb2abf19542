"""The .wdelta file: what it says, and where its arrays lie.

    7 bytes   "wdelta" and a zero
    u32       the version: 1, or 2, which is read
    u32       n, the length of the header
    n bytes   JSON: parent_hash, strategy, tensors {name: strategy, shape, dtype, …, field: {"_ref": field}}, flyweight (ours)
    records   u32 and the name of a tensor, u32 and a field, u32 and NumPy's name of a type, u32 dimensions, u64 for each, u64
              bytes, and the bytes
    32 bytes  SHA-256 of everything before

Records may come in any order; parent_hash follows theirs (in version 2 that of the names). docs/formats/wdelta.md is the
specification. What only our files have lies in the key `flyweight` of the header, in keys of tensors that other readers pass
over, and in records of no tensor: `header`, the BLAKE3 of the header, so that a file can be trusted without reading all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from flyweight.containers.hf import is_side_file
from flyweight.deltas import KINDS
from flyweight.deltas.changes import Change, Delta, Parent, Patch, Result
from flyweight.deltas.kind import Additive, Array, array_spec, require
from flyweight.deltas.recognition import MAGIC
from flyweight.foundation import strict_json, typed_json
from flyweight.foundation.cursor import Cursor, check_name, check_shape, utf8
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import (
    CUT_SHORT,
    DAMAGED,
    FlyweightError,
    LimitError,
    MalformedError,
    TruncatedError,
    UnsupportedError,
)
from flyweight.foundation.limits import MAX_JSON_BYTES, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS
from flyweight.foundation.manifest import Extent, Typed, is_digest
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import Source

SEAL_NBYTES = 32
FLYWEIGHT = "flyweight"
_OURS = 1
HEADER, METADATA, FILE = "header", "metadata", "file:"
"""Fields of the records that belong to no tensor."""
ARRAY_TYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
        "bool",
    )
}
DTYPE_NAMES = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16", DType.F8_E4M3: "float8_e4m3fn",
    DType.F8_E5M2: "float8_e5m2", DType.F8_E8M0: "float8_e8m0fnu", DType.F8_E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8_E5M2FNUZ: "float8_e5m2fnuz", DType.F6_E2M3: "float6_e2m3fn", DType.F6_E3M2: "float6_e3m2fn",
    DType.F4_E2M1: "float4_e2m1fn", DType.I64: "int64", DType.I32: "int32", DType.I16: "int16", DType.I8: "int8",
    DType.I4: "int4", DType.U64: "uint64", DType.U32: "uint32", DType.U16: "uint16", DType.U8: "uint8", DType.U4: "uint4",
    DType.BOOL: "bool", DType.C64: "complex64",
}  # fmt: skip
"""Element types by NumPy's names."""
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
MAX_FILE_BYTES = 64 << 20
"""Of the side files that differ from the parent's, all together: they are in memory while the model is open."""
_LEAST_NBYTES = len(MAGIC) + 8 + SEAL_NBYTES
_PIECE = 1 << 20
_RECORD_NBYTES = 512
"""What a record is charged to the budget of a parse."""


@dataclass(frozen=True, slots=True)
class FileArray:
    """An array of the file, read when it is asked for."""

    source: Source
    extent: Extent
    type: str
    """NumPy's name of the elements' type."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return ARRAY_TYPES[self.type]

    def __len__(self) -> int:
        return self.extent.nbytes // self.dtype.itemsize

    def __getitem__(self, at: slice) -> Array:
        start, stop, _ = at.indices(len(self))
        size = self.dtype.itemsize
        count = max(stop - start, 0)
        if not count:
            return np.zeros(0, self.dtype)
        raw = bytearray(count * size)  # copied: a file that shrinks meanwhile is then an error, and no signal
        self.source.read_into(self.extent.offset + start * size, memoryview(raw))
        return np.frombuffer(raw, self.dtype)


Records = Mapping[str, Mapping[str, FileArray]]
"""Tensor → field → array, in the order of the file."""


def read_wdelta(source: Source, file: str) -> Delta:
    """Everything but the arrays. `file` is the source's name in its bundle. A file that has no digests of its own is read
    once, for its SHA-256."""
    try:
        return _read(source, file)
    except FlyweightError as error:
        raise error.at(file=source.name) from None


def check_seal(source: Source) -> None:
    """MalformedError unless the SHA-256 at the end is that of everything before."""
    from hashlib import sha256  # which files with digests of their own do without

    digest, end = sha256(), source.size - SEAL_NBYTES
    for at in range(0, end, _PIECE):
        digest.update(source.read(at, min(_PIECE, end - at)))
    if end < 0 or bytes(source.read(end, SEAL_NBYTES)) != digest.digest():
        raise MalformedError(
            "the bytes do not match the checksum at the end", code="E_CHECKSUM", file=source.name, hint=DAMAGED
        )


def _read(source: Source, file: str) -> Delta:
    if source.size < _LEAST_NBYTES:
        raise TruncatedError(f"{source.size} bytes are no .wdelta file", offset=source.size, hint=CUT_SHORT)
    cursor = Cursor(source, 0, source.size - SEAL_NBYTES)
    if bytes(cursor.take(len(MAGIC), "the magic bytes")) != MAGIC:
        raise MalformedError("does not begin as a .wdelta file", code="E_MAGIC", offset=0)
    version = cursor.u32("the version")
    if version not in (1, 2):
        raise UnsupportedError(f".wdelta version {version} is not known", code="E_VERSION", hint="known: 1 and 2", offset=7)
    length = cursor.u32("the header length")
    if length > MAX_JSON_BYTES:
        raise LimitError(f"a header of {length} bytes exceeds the limit of {MAX_JSON_BYTES}", code="E_HEADER_SIZE", offset=11)
    raw = bytes(cursor.take(length, "the header"))
    header = strict_json.loads(raw, file=source.name)
    match header:
        case {"parent_hash": str(), "strategy": str(), "tensors": dict()}:
            pass
        case _:
            raise MalformedError("the header needs parent_hash, strategy and tensors", code="E_HEADER", offset=15)
    records = _read_records(cursor, file)
    ours = header.get(FLYWEIGHT)
    if ours is None:
        check_seal(source)
    else:
        _check_header(raw, records)
    delta = _read_changes(header, records, source.name, version)
    return delta if ours is None else _read_ours(delta, ours, records, source.name)


def _read_records(cursor: Cursor, file: str) -> dict[str, dict[str, FileArray]]:
    records: dict[str, dict[str, FileArray]] = {}
    while cursor.remaining:
        begin = cursor.offset
        cursor.spend(_RECORD_NBYTES, "records")
        name, field, kind = (_text(cursor, what) for what in ("a tensor's name", "a field", "an array's type"))
        rank = cursor.u32("the number of dimensions")
        if rank > MAX_RANK:
            raise cursor.malformed(f"an array of {rank} dimensions", "E_RANK", tensor=name)
        size = 1
        for dim in check_shape(cursor.scalars("u64", rank, "dimensions"), tensor=name):
            size *= dim
        nbytes = cursor.u64("the length of an array")
        dtype = ARRAY_TYPES.get(kind)
        if dtype is None:
            raise cursor.malformed(f"an array of unknown type {kind!r}", "E_DTYPE", tensor=name)
        if nbytes != size * dtype.itemsize or nbytes > cursor.remaining:
            message = f"field '{field}': {size} × {kind} are {size * dtype.itemsize} bytes, not {nbytes}"
            if nbytes == size * dtype.itemsize:
                message = f"field '{field}' has {nbytes} bytes, but {cursor.remaining} are left"
            raise cursor.malformed(message, "E_RECORD", tensor=name)
        of_tensor = records.setdefault(name, {})
        if field in of_tensor:
            raise MalformedError(f"field '{field}' is there twice", code="E_DUPLICATE", tensor=name, offset=begin)
        of_tensor[field] = FileArray(cursor.source, Extent(file, cursor.offset, nbytes), kind)  # type: ignore[arg-type]
        cursor.offset += nbytes
    return records


def _text(cursor: Cursor, what: str) -> str:
    length = cursor.u32(f"the length of {what}")
    if length > MAX_NAME_BYTES:
        raise cursor.malformed(f"{what} of {length} bytes exceeds {MAX_NAME_BYTES}", "E_NAME")
    return utf8(cursor.take(length, what), what, file=cursor.source.name, offset=cursor.offset)


def _check_header(raw: bytes, records: Records) -> None:
    digest = records.get("", {}).get(HEADER)
    if digest is None or digest[:SEAL_NBYTES].tobytes() != blake3(raw).digest():
        raise MalformedError("the header does not match its digest", code="E_CHECKSUM", hint=DAMAGED, offset=15)


def _read_changes(header: Mapping[str, Any], records: Records, name: str, version: int) -> Delta:
    described = header["tensors"]
    if len(described) > MAX_TENSORS:
        raise LimitError(f"{len(described)} tensors exceed the limit of {MAX_TENSORS}", code="E_TENSORS")
    changes = {}
    for tensor, about in described.items():
        try:
            check_name(tensor)
            changes[tensor] = _read_change(tensor, about, records.get(tensor, {}))
        except FlyweightError as error:
            raise error.at(tensor=tensor) from None
    for change in changes.values():
        twin = None if change.twin is None else changes.get(change.twin)
        alike = twin is not None and bool(twin.parts) and (twin.spec, twin.codec) == (change.spec, change.codec)
        require(change.twin is None or alike, f"'{change.name}' is the same as no change")
    order = [tensor for tensor in records if tensor in changes]
    hashed = sorted(order) if version == 2 else order
    return Delta(name, changes, parent=Parent(hash=header["parent_hash"], hashed=tuple(hashed)), strategy=header["strategy"])


def _read_change(name: str, about: object, arrays: Mapping[str, FileArray]) -> Change:
    match about:
        case {"strategy": str(strategy), "shape": shape, "dtype": str(dtype)}:
            rest = dict[str, Any](about)  # type: ignore[call-overload]
            spec = TensorSpec(check_shape(shape), _dtype(dtype))
        case _:
            raise MalformedError("a tensor needs strategy, shape and dtype", code="E_DELTA")
    refs = {field for field, value in rest.items() if type(value) is dict and "_ref" in value}
    for field in refs:
        require(rest[field] == {"_ref": field} and field in arrays, f"there is no record for field '{field}'")
    parent, twin = (_optional(rest, key, str) for key in ("parent", "twin"))
    digests = {key: rest[key] for key in ("parent_digest", "digest", "stored_digest") if key in rest}
    require(all(map(is_digest, digests.values())), "a digest is not 64 hexadecimal digits")
    if strategy == "same":
        require(not refs and (parent is None) != (twin is None), "it must be the same as one other tensor")
        return Change(name, spec, _codec(rest), parent=parent, twin=twin, **digests)
    if strategy not in KINDS:
        hint = f"known: {', '.join(KINDS.lines)}; a newer version may know it"
        raise UnsupportedError(f"no strategy named '{strategy}'", code="E_STRATEGY", hint=hint)
    kind = KINDS[strategy]
    if issubclass(kind, Additive):
        require(spec.dtype is DType.F32, f"numbers that are added are float32, not {dtype}")
        require(not rest.keys() & {"new", "parts", "codec"}, "numbers can be added to a plain tensor of the parent only")
    parts, layout = {}, {}
    for part, (own, part_spec, prefix) in _parts(rest, spec).items():
        chosen = {}
        for field, types in kind.fields.items():
            require(prefix + field in refs, f"{strategy} needs the field '{prefix}{field}'")
            chosen[field] = arrays[prefix + field]
            if chosen[field].type not in types:
                raise MalformedError(f"field '{field}' is {chosen[field].type}, not {' or '.join(types)}", code="E_DELTA")
        layout[part] = part_spec
        parts[part] = kind(array_spec(part_spec), own, chosen)
    stored = tuple(array.extent for field, array in arrays.items() if field in refs)
    before = None if rest.get("new") is True else parent or name
    return Change(name, spec, _codec(rest), parts, layout, before, _parent_spec(rest), stored=stored, **digests)


def _parent_spec(rest: Mapping[str, Any]) -> TensorSpec | None:
    match rest.get("parent_spec"):
        case None:
            return None
        case {"shape": shape, "dtype": str(dtype)}:
            return TensorSpec(check_shape(shape), _dtype(dtype))
    raise MalformedError("'parent_spec' is not a shape and a dtype", code="E_DELTA")


def _parts(rest: Mapping[str, Any], spec: TensorSpec) -> dict[str, tuple[Mapping[str, Any], TensorSpec, str]]:
    """Of each stored part what is said of it, what it is, and how its fields begin."""
    if "parts" not in rest:
        return {"data": (rest, spec, "")}
    require(type(rest["parts"]) is dict and 0 < len(rest["parts"]) <= 64, "its parts are not described")
    found = {}
    for part, about in rest["parts"].items():
        match about:
            case {"shape": shape, "dtype": str(dtype)}:
                found[part] = about, TensorSpec(check_shape(shape), _dtype(dtype)), f"{part}."
            case _:
                raise MalformedError(f"part '{part}' needs shape and dtype", code="E_DELTA")
    return found


def _codec(rest: Mapping[str, Any]) -> CodecSpec:
    return CodecSpec.read(rest["codec"], code="E_DELTA") if "codec" in rest else RAW


def _dtype(name: str) -> DType:
    if name not in _DTYPES:
        raise MalformedError(f"unknown element type '{name[:40]}'", code="E_DTYPE")
    return _DTYPES[name]


def _optional(of: Mapping[str, Any], key: str, kind: type) -> Any:
    value = of.get(key)
    require(value is None or type(value) is kind, f"'{key}' is not {kind.__name__}")
    return value


def _read_ours(delta: Delta, ours: object, records: Records, file: str) -> Delta:
    match ours:
        case {"version": int(version)} if version != _OURS:
            hint = "a newer version of Flyweight made it: use that"
            raise UnsupportedError(f"its part of Flyweight has version {version}, not {_OURS}", code="E_VERSION", hint=hint)
        case {
            "version": int(),
            "parent": dict(parent),
            "result": dict(result),
            "kept": dict(kept),
            "files": dict(files),
            "removed_files": list(gone),
        }:
            pass
        case _:
            raise MalformedError(f"'{FLYWEIGHT}' needs version, parent, result, kept, files and removed_files", code="E_HEADER")
    require(all(is_digest(digest) for digest in kept.values()), "a digest is not 64 hexadecimal digits")
    require(not kept.keys() & delta.changes.keys(), "a tensor is both kept and changed")
    require(all(type(name) is str for name in gone), "a removed file has no name")
    for change in delta.changes.values():
        require(change.digest is not None, f"'{change.name}' has no digest")
    own = records.get("", {})
    metadata = _read_metadata(own, _optional(result, "metadata_digest", str), file)
    texts = {key: _optional(parent, key, str) for key in ("path", "format")}
    came_from = delta.parent._replace(
        name=_optional(parent, "name", str) or "", **texts, tensors=_optional(parent, "tensors", int)
    )
    about = {key: _optional(result, key, str) for key in ("format", "dialect")}
    made = Result(_optional(result, "name", str) or "", **about, metadata=metadata)
    patches = {name: _read_patch(name, said, own) for name, said in files.items()}
    nbytes = sum(patch.nbytes for patch in patches.values())
    if nbytes > MAX_FILE_BYTES:
        message = f"side files of {nbytes} bytes exceed the limit of {MAX_FILE_BYTES}"
        raise LimitError(message, code="E_DELTA_FILE")
    return Delta(delta.name, delta.changes, kept, patches, tuple(gone), came_from, made, delta.strategy)


def _read_metadata(own: Mapping[str, FileArray], digest: str | None, file: str) -> dict[str, Typed] | None:
    """None: as the parent's."""
    if digest is None:
        return None
    stored = own.get(METADATA)
    require(stored is not None and stored.extent.nbytes <= MAX_JSON_BYTES, "its metadata are not there, or too long")
    raw = stored[:].tobytes() if stored is not None else b""
    if blake3(raw).hexdigest() != digest:
        raise MalformedError("the metadata do not match their digest", code="E_DIGEST", hint=DAMAGED)
    return typed_json.loads(utf8(raw, "metadata"), file=file)


def _read_patch(name: str, about: object, own: Mapping[str, FileArray]) -> Patch:
    if not is_side_file(name) or not _is_inside(name):
        raise MalformedError(f"a side file cannot be called {name!r}", code="E_FILE_NAME")
    match about:
        case {"nbytes": int(nbytes), "digest": str(digest)} if 0 <= nbytes <= MAX_FILE_BYTES and is_digest(digest):
            stored = own.get(FILE + name)
            if stored is not None and stored.extent.nbytes <= 2 * MAX_FILE_BYTES and type(nbytes) is int:
                return Patch(nbytes, stored.extent, digest)
    raise MalformedError(f"side file '{name}' is not described", code="E_DELTA_FILE")


def _is_inside(name: str) -> bool:
    """Whether a path is one that the files of a model have: below their folder, and in none that is hidden."""
    *folders, last = name.split("/")
    plain = last not in ("", ".", "..") and all(folder and not folder.startswith(".") for folder in folders)
    return plain and len(name.encode()) <= MAX_NAME_BYTES and not re.search(r"[\0\\]|^[A-Za-z]:", name)
