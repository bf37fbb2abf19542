"""`Checkpoint`: reads the tensors a manifest describes.

Two ways in. `encoded` and indexing map the file and copy nothing that is aligned; `slab` copies a
run of rows with pread, so that memory is bounded by the run and a file that shrinks meanwhile is
an error and not a signal.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

from flyweight.codecs import Array, codec_for, known
from flyweight.containers import Container, recognise
from flyweight.errors import FlyweightError
from flyweight.manifest import Entry, Extent, Manifest
from flyweight.sources import Bundle, Source, open_bundle
from flyweight.tensor import EncodedTensor, TensorSpec

__all__ = ["Checkpoint", "as_array", "open_checkpoint", "read_checkpoint", "without_collector"]


_MOST_SHARED = 4096  # kinds of tensors remembered while a table is checked; no model has a tenth of that


class Checkpoint(Mapping[str, Array]):
    """Indexing decodes one tensor; nothing else is read. Use as a context manager or let it be collected."""

    def __init__(self, bundle: Bundle, container: Container, manifest: Manifest) -> None:
        self.bundle = bundle
        self.container = container
        self.manifest = manifest
        self._proven: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        tensor = self.encoded(name)
        try:
            return codec_for(tensor.codec).decode(tensor.spec, tensor.parts)
        except FlyweightError as error:
            raise error.at(file=self.bundle.name, tensor=name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.entries)

    def __len__(self) -> int:
        return len(self.manifest.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.manifest.entries

    def proven(self, name: str) -> Entry:
        """A tensor's entry, once its container has checked what lies beside the bytes; whoever reads them asks for it here."""
        entry = self.manifest.entries[name]
        if name not in self._proven:
            try:
                self.container.prove(self.bundle, entry)
            except FlyweightError as error:
                raise error.at(file=self.bundle.name, tensor=name) from None
            self._proven.add(name)
        return entry

    def encoded(self, name: str) -> EncodedTensor:
        """One tensor as stored. Aligned parts are read-only views on the mapped file."""
        entry = self.proven(name)
        parts = {}
        file, source = None, None
        for part, spec in entry.parts.items():
            extent = entry.extents[part]
            if source is None or extent.file != file:
                file, source = extent.file, self.source(extent.file)
            parts[part] = as_array(source.read(extent.offset, extent.nbytes), spec)
        return EncodedTensor(entry.spec, entry.codec, parts)

    def slab(self, name: str, start: int, stop: int) -> EncodedTensor:
        """Rows start..stop of a tensor whose parts all have its rows, copied into memory."""
        entry = self.proven(name)
        parts = {}
        for part, spec in entry.parts.items():
            width = spec.dtype.nbytes(spec.columns)
            rows = TensorSpec((stop - start, spec.columns), spec.dtype)
            buffer = memoryview(bytearray(rows.nbytes))
            extent = entry.extents[part]
            self.source(extent.file).read_into(extent.offset + start * width, buffer)
            parts[part] = as_array(buffer, rows)
        return EncodedTensor(TensorSpec((stop - start, entry.spec.columns), entry.spec.dtype), entry.codec, parts)

    def source(self, file: str) -> Source:
        """The source an extent lies in; the parts of a split file are its siblings."""
        return self.bundle[file] if file in self.bundle else self.bundle.siblings()[file]

    def read(self, extent: Extent | bytes) -> bytes:
        """The content of a side file."""
        if isinstance(extent, bytes):
            return extent
        return bytes(self.source(extent.file).read(extent.offset, extent.nbytes))

    def close(self) -> None:
        self.bundle.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Checkpoint {self.bundle.name!r} ({self.manifest.format}, {len(self)} tensors)>"


def _check_layouts(entries: Iterable[Entry]) -> None:
    """Stored parts are what their codec says, where the codec is known. What tensors share is looked at once."""
    spec, codec = None, None
    seen = set[tuple[int, int, int]]()
    for entry in entries:
        shared = (id(entry.codec), id(entry.spec), id(entry.parts))
        if shared in seen:
            continue
        if len(seen) >= _MOST_SHARED:
            seen.clear()
        seen.add(shared)
        try:
            if entry.codec is not spec:
                spec = entry.codec
                codec = codec_for(spec) if known(spec) else None
            if codec is not None:
                codec.check_layout(entry.spec, entry.parts)
        except FlyweightError as error:
            raise error.at(tensor=entry.name) from None


def as_array(raw: memoryview, spec: TensorSpec) -> Array:
    """Bytes as the part they are; copied only where they are not aligned."""
    if not len(raw):
        shape = (0,) if spec.dtype.bits % 8 else spec.shape
        return np.zeros(shape, spec.dtype.storage)
    array = np.frombuffer(raw, spec.dtype.storage)
    if not array.flags.aligned:
        array = array.copy()
    return array if spec.dtype.bits % 8 else array.reshape(spec.shape)


@contextmanager
def without_collector() -> Iterator[None]:
    """A table of a million tensors or a vocabulary holds no cycle, and looking for one takes up to a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def read_checkpoint(bundle: Bundle, container: Container) -> Checkpoint:
    """A bundle read as one format, with its whole table validated and no weight read. It is closed if that fails."""
    try:
        with without_collector():
            manifest = container.parse(bundle)
            _check_layouts(manifest.entries.values())
    except FlyweightError as error:
        bundle.close()
        raise error.at(file=bundle.name) from None
    return Checkpoint(bundle, container, manifest)


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a file or directory of any known format."""
    bundle = open_bundle(path)
    try:
        container = recognise(bundle)
        bundle = container.view(bundle)
    except FlyweightError as error:
        bundle.close()
        raise error.at(file=bundle.name) from None
    return read_checkpoint(bundle, container)
