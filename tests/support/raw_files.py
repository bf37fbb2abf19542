"""Files written byte by byte, sharing no code with the package, so that tests can also write wrong ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["GgufTensor", "KeyValue", "gguf_file", "gguf_string", "npy_file", "npy_shape", "safetensors_file", "tensor_json"]


def safetensors_file(table: Mapping[str, Any] | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A header (as JSON, or as given) and the data after it; `length` overrides the header's length field."""
    head = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def tensor_json(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def gguf_string(text: str | bytes, *, length: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


class KeyValue(NamedTuple):
    """A metadata entry; `value` as bytes is written as it is."""

    key: str | bytes
    kind: int
    value: Any

    def pack(self) -> bytes:
        return gguf_string(self.key) + struct.pack("<I", self.kind) + _pack_value(self.kind, self.value)


def _pack_value(kind: int, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if kind == 8:
        return gguf_string(value)
    if kind == 9:
        item, items = value
        return struct.pack("<IQ", item, len(items)) + b"".join(_pack_value(item, i) for i in items)
    return struct.pack("<" + _SCALARS[kind], value)


class GgufTensor(NamedTuple):
    """A line of the tensor table; `dims` in file order, fastest-varying first."""

    name: str | bytes
    dims: tuple[int, ...]
    kind: int
    offset: int
    rank: int | None = None

    def pack(self) -> bytes:
        rank = len(self.dims) if self.rank is None else self.rank
        return gguf_string(self.name) + struct.pack(f"<I{len(self.dims)}QIQ", rank, *self.dims, self.kind, self.offset)


def gguf_file(
    keys: Iterable[KeyValue] = (),
    tensors: Iterable[GgufTensor] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    tensor_count: int | None = None,
    key_count: int | None = None,
    alignment: int = 32,
    magic: bytes = b"GGUF",
) -> bytes:
    keys, tensors = list(keys), list(tensors)
    counts = (len(tensors) if tensor_count is None else tensor_count, len(keys) if key_count is None else key_count)
    head = magic + struct.pack("<IQQ", version, *counts)
    head += b"".join(k.pack() for k in keys) + b"".join(t.pack() for t in tensors)
    return head + bytes(-len(head) % alignment) + data


_NPY_SIZES = {"|i1": 1, "|u1": 1, "<f2": 2, "<u2": 2, "<f4": 4, "<i4": 4, "<f8": 8, "<i8": 8}


def npy_file(
    descr: str,
    shape: tuple[Any, ...],
    data: bytes | None = None,
    *,
    text: str | None = None,
    version: tuple[int, int] = (1, 0),
    length: int | None = None,
) -> bytes:
    """A .npy file; `text` replaces its dictionary, `length` what is said of its length."""
    head = (text or f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}").encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    size = len(head) if length is None else length
    prefix = b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", size)
    if data is None:
        count = 1
        for dim in shape:
            count *= dim
        data = bytes(count * _NPY_SIZES.get(descr, 1))
    return prefix + head + data


def npy_shape(*shape: int) -> bytes:
    return npy_file("<i8", (len(shape),), struct.pack(f"<{len(shape)}q", *shape))
