"""Tensors of a checkpoint as flat elements, or as the bytes they are stored as: some of them at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from flyweight.checkpoint.checkpoint import Checkpoint
from flyweight.codecs import Array, codec_for, take_rows
from flyweight.deltas.kind import Elements
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, TensorSpec, has_rows

_PIECE = 1 << 20


def stored_elements(checkpoint: Checkpoint, entry: Entry | None, part: str, spec: TensorSpec) -> Elements:
    """The stored bytes of a part as elements of `spec`; zeros beyond the last whole one, or where there is no such part."""
    extent, width = None if entry is None else entry.extents.get(part), spec.dtype.itemsize
    if extent is None:
        return lambda start, stop: np.zeros(stop - start, spec.dtype.storage)
    file, offset, count = extent.file, extent.offset, extent.nbytes // width

    def elements(start: int, stop: int) -> Array:
        there = max(min(stop, count) - start, 0)
        raw = bytearray((stop - start) * width)
        if there:
            checkpoint.source(file).read_into(offset + start * width, memoryview(raw)[: there * width])
        return np.frombuffer(raw, spec.dtype.storage)

    return elements


def elements_of(checkpoint: Checkpoint, entry: Entry) -> Elements:
    """The values of a tensor, whatever it is stored as."""
    if entry.codec == RAW and entry.spec.dtype.bits % 8 == 0:
        stored = stored_elements(checkpoint, entry, "data", entry.spec)
        return (lambda start, stop: stored(start, stop).view(bool)) if entry.spec.dtype is DType.BOOL else stored
    codec, columns = codec_for(entry.codec), entry.spec.columns

    def elements(start: int, stop: int) -> Array:
        tensor = checkpoint.encoded(entry.name)
        if not has_rows(entry.spec, entry.parts):
            return codec.decode(entry.spec, tensor.parts).reshape(-1)[start:stop]
        first, last = start // columns, -(-stop // columns)
        rows = take_rows(tensor, slice(first, last))
        return codec.decode(rows.spec, rows.parts).reshape(-1)[start - first * columns : stop - first * columns]

    return elements


def stored_bytes(checkpoint: Checkpoint, name: str, *, checked: bool = True) -> Iterator[memoryview]:
    """The bytes of a tensor as it is stored, part after part, a piece at a time; `checked` as the checkpoint checks them."""
    entry = checkpoint.checked_entry(name) if checked else checkpoint.manifest.entries[name]
    buffer = memoryview(bytearray(_PIECE))
    for extent in entry.extents.values():
        source = checkpoint.source(extent.file)
        for at in range(0, extent.nbytes, _PIECE):
            piece = buffer[: min(_PIECE, extent.nbytes - at)]
            source.read_into(extent.offset + at, piece)
            yield piece


def tensor_digest(checkpoint: Checkpoint, name: str, *, checked: bool = True) -> str:
    """The BLAKE3 of the bytes of a tensor as it is stored."""
    digest = blake3()
    for piece in stored_bytes(checkpoint, name, checked=checked):
        digest.update(piece)
    return digest.hexdigest()
