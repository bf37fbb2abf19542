"""A checkpoint some of whose matrices are multiplied by scales of their columns and rows, and some vectors replaced.

Such a matrix is a file of its own in the bundle, plain f32, whose rows are computed when they are read: whoever reads the
checkpoint sees a tensor like any other, and memory holds the rows that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flyweight.checkpoint.checkpoint import Checkpoint
from flyweight.checkpoint.tensor_bytes import elements_of
from flyweight.codecs import Array
from flyweight.codecs.casts import astype
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Digests, Entry, Extent
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.sources import Bundle, MemorySource, Source


class Scales(NamedTuple):
    """What the values of a matrix are multiplied by, f32; None is 1."""

    columns: Array | None = None
    rows: Array | None = None


class Rescaled(Checkpoint):
    """A view: whoever made the checkpoint closes it."""

    def __init__(self, base: Checkpoint, scales: Mapping[str, Scales], vectors: Mapping[str, Array]) -> None:
        """`vectors` are of the type and shape that the tensors of their names have."""
        self._base = base
        self.delta_places = base.delta_places
        before, made = base.manifest.entries, dict[str, Source]()
        entries = dict(before)
        for name, of_tensor in scales.items():
            spec = TensorSpec(before[name].spec.shape, DType.F32)
            entries[name] = Entry(name, spec, RAW, {"data": spec}, {"data": Extent(_file(name), 0, spec.nbytes)})
            made[_file(name)] = _ScaledRows(base, before[name], of_tensor)
        for name, values in vectors.items():
            raw = np.ascontiguousarray(values).tobytes()
            entries[name] = replace(before[name], extents={"data": Extent(_file(name), 0, len(raw))})
            made[_file(name)] = MemorySource(raw, _file(name))
        digests = base.manifest.digests
        kept = {name: extents for name, extents in digests.tensors.items() if name not in (scales.keys() | vectors.keys())}
        manifest = replace(base.manifest, entries=entries, digests=Digests(digests.of, kept, digests.remedy))
        super().__init__(_Joined(base.bundle, made), base.container, manifest, checks_digests=base.checks_digests)
        self._check_block = None  # the base's own tensors are checked by it

    def files(self) -> set[str]:
        return self._base.files()

    def checked_entry(self, name: str) -> Entry:
        self._base.checked_entry(name)
        return self.manifest.entries[name]

    def source(self, file: str) -> Source:
        return self.bundle[file] if file in self.bundle else self._base.source(file)

    def close(self) -> None:
        pass


class _ScaledRows(Source):
    def __init__(self, base: Checkpoint, entry: Entry, scales: Scales) -> None:
        self.name, self.size = _file(entry.name), 4 * entry.spec.size
        self._elements, self._scales, self._columns = elements_of(base, entry), scales, entry.spec.columns

    def read(self, offset: int, length: int) -> memoryview:
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return memoryview(buffer).toreadonly()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.check_range(offset, len(buffer))
        if not len(buffer):
            return
        width = 4 * self._columns
        first, last = offset // width, -(-(offset + len(buffer)) // width)
        values = astype(self._elements(first * self._columns, last * self._columns), DType.F32.numpy)
        rows = values.reshape(last - first, self._columns)
        if self._scales.columns is not None:
            rows = rows * self._scales.columns
        if self._scales.rows is not None:
            rows = rows * self._scales.rows[first:last, None]
        raw = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        buffer[:] = raw[offset - first * width :][: len(buffer)].data


class _Joined(Bundle):
    """The base's files and those that are made."""

    def __init__(self, base: Bundle, made: Mapping[str, Source]) -> None:
        self.name, self.is_directory = base.name, base.is_directory
        self._base, self._made = base, made

    def __getitem__(self, key: str) -> Source:
        self.check_open()
        return self._made[key] if key in self._made else self._base[key]

    def __contains__(self, key: object) -> bool:
        return key in self._made or key in self._base

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from self._made

    def __len__(self) -> int:
        return len(self._base) + len(self._made)

    @property
    def single(self) -> str | None:
        return self._base.single

    def siblings(self) -> Bundle:
        return self._base.siblings()

    def check_open(self) -> None:
        self._base.check_open()


def _file(name: str) -> str:
    return f"rescaled/{name}"
