"""Rows of a stored tensor: read a slab at a time, reordered by the model's transform, and decoded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import Array, codec_for, take_rows
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, CodecSpec, EncodedTensor, TensorSpec, has_rows
from flyweight.models import Transform
from flyweight.quantizers import prune

SLAB_BYTES = 8 << 20
"""Decoded bytes worked on at a time: fits a core's share of cache, and amortises the calls."""


def slabs(spec: TensorSpec, by_rows: bool) -> Iterator[tuple[int, int]]:
    """Row ranges whose f32 values fill about SLAB_BYTES."""
    rows = spec.rows
    step = max(1, SLAB_BYTES // max(4 * spec.columns, 1)) if by_rows else max(rows, 1)
    if rows == 0:
        return
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def spaced(size: int, count: int) -> list[int]:
    """In the middle of so many equal parts; all of them, if there are fewer."""
    count = min(size, count)
    return [(2 * index + 1) * size // (2 * count) for index in range(count)]


def read_rows(checkpoint: Checkpoint, name: str, start: int, stop: int, transform: Transform | None) -> EncodedTensor:
    """Rows start..stop of the tensor after the transform's row moves, as stored.

    Rows that do not stand alone are moved as plain numbers, the whole tensor at once.
    """
    entry = checkpoint.manifest.entries[name]
    by_rows = has_rows(entry.spec, entry.parts)
    vector = len(entry.spec.shape) == 1
    order = transform.rows(entry.spec.size if vector else entry.spec.rows) if transform else None
    if order is None:
        slab = checkpoint.slab(name, start, stop) if by_rows else checkpoint.encoded(name)
        return _with_axes(slab, entry) if stop - start == entry.spec.rows else slab
    if vector or not by_rows:  # elements of a bias move as the rows of its matrix do
        values = checkpoint[name]
        moved = (values if vector else values.reshape(entry.spec.rows, -1))[order]
        return EncodedTensor(entry.spec, RAW, {"data": moved.reshape(entry.spec.shape)})
    chosen = order[start:stop]
    low = int(chosen.min())
    return take_rows(checkpoint.slab(name, low, int(chosen.max()) + 1), chosen - low)


def _with_axes(slab: EncodedTensor, entry: Entry) -> EncodedTensor:
    """A slab of all rows in the shape that its tensor has: to a codec of channels or blocks an axis is more than many rows."""
    parts = {name: array.reshape(entry.parts[name].shape) for name, array in slab.parts.items()}
    return EncodedTensor(entry.spec, slab.codec, parts)


def decode_rows(tensor: EncodedTensor, transform: Transform | None) -> Array:
    """The values of a slab, the transform's constant added."""
    values = codec_for(tensor.codec).decode(tensor.spec, tensor.parts)
    return values + np.float32(transform.add) if transform and transform.add else values


def pruned(values: Array, codec: CodecSpec, sparsity: float) -> Array:
    """The values as a masked codec shall have them: of the blocks of each row, the `sparsity` share of least energy is zero."""
    return prune(values, codec.integer("block"), sparsity) if sparsity else values
