"""The contract of a container.

A container is two pure functions over one table. `parse` turns a bundle into a manifest without
reading a weight; `place` turns a manifest into the exact files to write: every byte that is not
a weight, and the extent of every part that is. Who moves the weights (the pipeline) needs no
format, and who knows the format does no output. `parse(written) == placed` is a law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flyweight.dtypes import DType
from flyweight.errors import MalformedError, UnsupportedError
from flyweight.manifest import Entry, Extent, Manifest, Typed
from flyweight.sources import Bundle, Source
from flyweight.tensor import CodecSpec, TensorSpec

__all__ = ["Container", "Image", "Placement", "check_cover"]


@dataclass(frozen=True, slots=True)
class Image:
    """A file to write: its size and the chunks at their offsets. What no chunk and no part covers is zero."""

    nbytes: int
    chunks: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The manifest with every extent filled in, and the files around the weights.

    `copies` are side files taken over unchanged from the source bundle.
    """

    manifest: Manifest
    images: Mapping[str, Image]
    copies: Mapping[str, Extent] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(i.nbytes for i in self.images.values()) + sum(e.nbytes for e in self.copies.values())


class Container(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    """What people call it."""
    dialect: ClassVar[str]
    """The tensor naming it requires; empty when it takes any."""
    is_directory: ClassVar[bool]
    suffix: ClassVar[str] = ""
    vector_dtype: ClassVar[DType | None] = None
    """The element type its readers demand of dense vectors, if they do."""

    @abstractmethod
    def probe(self, bundle: Bundle) -> bool:
        """Whether the bundle is of this format, by content. Reads a few bytes at most; never raises on bad ones."""

    @abstractmethod
    def parse(self, bundle: Bundle) -> Manifest:
        """The manifest, fully validated: every extent lies inside its file, none overlap."""

    @abstractmethod
    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        """Whether a tensor in this codec can be stored as it is."""

    def doubts(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        """What a strict reader might object to though the format allows it: (code, message) pairs for `verify`."""
        return ()

    def describe(self, entries: Mapping[str, Entry], metadata: Mapping[str, Typed]) -> Mapping[str, Typed]:
        """The metadata with what it says of the tensors made true, for tensors that are new."""
        return metadata

    def adapt(self, codec: CodecSpec) -> CodecSpec:
        """The same arithmetic with this container's own bit order and word type, where it has one."""
        return codec

    @abstractmethod
    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """Where everything goes in files under `name` (a file name; ignored by directories)."""

    def require_carried(self, manifest: Manifest) -> None:
        for entry in manifest.entries.values():
            if not self.carries(entry.spec, entry.codec):
                raise UnsupportedError(f"{self.name} cannot hold {entry.spec} as {entry.codec}", tensor=entry.name)


def check_cover(spans: Iterable[tuple[str, int, int]], start: int, source: Source, alignment: int = 1) -> None:
    """Tensors (name, offset, bytes) fill a file: each begins at the aligned end of the one before, the first at `start`.

    No overlap, no hole, nothing after the last but its padding, which may be missing.
    """
    expected = start
    for name, begin, nbytes in spans:
        end = begin + nbytes
        if (begin - start) % alignment:
            code, problem = "E_ALIGNMENT", f"offset {begin - start} is no multiple of the alignment {alignment}"
        elif end > source.size:
            code, problem = "E_PAST_END", f"bytes {begin}..{end} run past the end at {source.size}"
        elif begin < expected:
            code, problem = "E_OVERLAP", f"begins {expected - begin} bytes before the end of another"
        elif begin > expected:
            code, problem = "E_HOLE", f"has {begin - expected} bytes before it that belong to no tensor"
        else:
            expected = end + -end % alignment
            continue
        raise MalformedError(problem, code=code, file=source.name, tensor=name, offset=begin)
    if source.size > expected:
        raise MalformedError(
            f"{source.size - expected} bytes after the last tensor", code="E_TRAILING", file=source.name, offset=expected
        )
