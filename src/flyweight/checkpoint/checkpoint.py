"""`Checkpoint`: reads the tensors a manifest describes.

There are two ways to read. `encoded` and indexing map the file and copy nothing that is aligned.
`slab` copies a range of rows with pread: memory is bounded by the range, and a file that shrinks
meanwhile gives an error instead of a signal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

import numpy as np

from flyweight.codecs import Array, codec_for, known
from flyweight.containers.abilities import ChecksBlocks
from flyweight.containers.container import Container
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import EncodedTensor, TensorSpec
from flyweight.sources import Bundle, Source, Uncopied


class Checkpoint(Uncopied, Mapping[str, Array]):
    """A lazy mapping from tensor names to arrays: indexing reads and decodes one tensor. Use it as a context manager.

    After `close`, reading raises ClosedError, a ValueError; arrays already returned stay valid. Any number of threads may
    read.
    """

    delta_places: tuple[str, ...] = ()
    """The deltas on it, in order; `bundle.name` is the base they are on."""

    def __init__(self, bundle: Bundle, container: Container, manifest: Manifest, *, checks_digests: bool = False) -> None:
        """With `checks_digests`, the bytes of a tensor are checked against their recorded digest before they are first read;
        those of side files always are."""
        self.bundle = bundle
        self.container = container
        self.manifest = manifest
        self.checks_digests = checks_digests
        self._check_block = container.check_block if isinstance(container, ChecksBlocks) else None
        self._checked: set[str] = set()
        self._right: set[Extent] = set()

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

    def checked_entry(self, name: str) -> Entry:
        """A tensor's entry, after its block header and, if wanted, its digest are checked. All reads go through here."""
        self.check_open()
        entry = self.manifest.entries[name]
        if name not in self._checked:
            try:
                if self._check_block is not None:
                    self._check_block(self.bundle, entry)
                if self.checks_digests:
                    self.check_tensor(name)
            except FlyweightError as error:
                raise error.at(file=self.bundle.name, tensor=name) from None
            self._checked.add(name)
        return entry

    def encoded(self, name: str) -> EncodedTensor:
        """One tensor as stored. Aligned parts are read-only views on the mapped file."""
        entry = self.checked_entry(name)
        parts = {}
        file, source = None, None
        for part, spec in entry.parts.items():
            extent = entry.extents[part]
            if source is None or extent.file != file:
                file, source = extent.file, self.source(extent.file)
            parts[part] = as_array(source.read(extent.offset, extent.nbytes), spec)
        return EncodedTensor(entry.spec, entry.codec, parts)

    def slab(self, name: str, start: int, stop: int) -> EncodedTensor:
        """Rows start..stop of a tensor whose parts all have its rows, copied into memory; scalars belong to all rows."""
        entry = self.checked_entry(name)
        vector = len(entry.spec.shape) == 1  # its one row is the tensor itself: as a matrix its axes would be others
        parts = {}
        for part, spec in entry.parts.items():
            width = spec.dtype.nbytes(spec.columns) if spec.shape else 0
            rows = spec if vector or not spec.shape else TensorSpec((stop - start, spec.columns), spec.dtype)
            buffer = np.empty(rows.nbytes, np.uint8).data  # all of it is read
            extent = entry.extents[part]
            self.source(extent.file).read_into(extent.offset + start * width, buffer)
            parts[part] = as_array(buffer, rows)
        read = entry.spec if vector else TensorSpec((stop - start, entry.spec.columns), entry.spec.dtype)
        return EncodedTensor(read, entry.codec, parts)

    def source(self, file: str) -> Source:
        """The source an extent lies in; the parts of a split file are its siblings."""
        self.check_open()
        return self.bundle[file] if file in self.bundle else self.bundle.siblings()[file]

    def files(self) -> set[str]:
        """The files that tensors and side files lie in; `source` opens one."""
        weights = {extent.file for entry in self.manifest.entries.values() for extent in entry.extents.values()}
        return weights | {content.file for content in self.manifest.files.values() if isinstance(content, Extent)}

    def read(self, extent: Extent | bytes) -> bytes:
        """The content of a side file."""
        self.check_open()
        if isinstance(extent, bytes):
            return extent
        self.check_digest(extent)
        return bytes(self.source(extent.file).read(extent.offset, extent.nbytes))

    def check_digest(self, extent: Extent, *, after_piece: Callable[[], object] = lambda: None) -> None:
        """MalformedError if the bytes of this extent do not match their recorded digest, if there is one. Checked only once."""
        wanted = self.manifest.digests.of.get(extent)
        if wanted is None or extent in self._right:
            return
        source = self.source(extent.file)
        if source.digest(extent.offset, extent.nbytes, after_piece=after_piece) != wanted:
            raise MalformedError(
                "the bytes do not match the recorded digest", code="E_DIGEST", file=source.name,
                tensor=self.digested().get(extent), offset=extent.offset, hint=self.manifest.digests.remedy,
            )  # fmt: skip
        self._right.add(extent)

    def check_tensor(self, name: str) -> None:
        """`check_digest` of every extent of a tensor."""
        for extent in self.manifest.digests.tensors.get(name, ()):
            self.check_digest(extent)

    def check_digests(self) -> None:
        """Check everything against its recorded digest, with several threads."""
        from concurrent.futures import ThreadPoolExecutor  # which a start does not need

        with ThreadPoolExecutor(thread_name_prefix="digest") as pool:
            for _ in pool.map(self.check_digest, dict.fromkeys((*self.digested(), *self.manifest.digests.of))):
                pass

    def digested(self) -> dict[Extent, str]:
        """The extents of weights that have a digest, in the order of the tensors, and the first tensor of each."""
        found: dict[Extent, str] = {}
        for name, extents in self.manifest.digests.tensors.items():
            for extent in extents:
                found.setdefault(extent, name)
        return found

    def checked(self, extent: Extent) -> bool:
        """Whether these bytes were checked against a digest."""
        return extent in self._right

    def check_open(self) -> None:
        self.bundle.check_open()

    def close(self) -> None:
        self.bundle.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Checkpoint {self.bundle.name!r} ({self.manifest.format}, {len(self)} tensors)>"


def check_layouts(manifest: Manifest) -> None:
    """Stored parts are what their codec says, where the codec is known. What tensors share is looked at once."""
    for entry, _ in manifest.kinds():
        try:
            if known(entry.codec):
                codec_for(entry.codec).check_layout(entry.spec, entry.parts)
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


def read_checkpoint(bundle: Bundle, container: Container, *, checks_digests: bool = False) -> Checkpoint:
    """A bundle read as one format, with its whole table validated and no weight read. It is closed if that fails."""
    try:
        with without_collector():
            manifest = container.parse(bundle)
            check_layouts(manifest)
    except FlyweightError as error:
        bundle.close()
        raise error.at(file=bundle.name) from None
    return Checkpoint(bundle, container, manifest, checks_digests=checks_digests)
