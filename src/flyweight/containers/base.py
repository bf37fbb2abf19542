"""The contract of a container.

A container is two pure functions over one table. `parse` turns a bundle into a manifest without
reading a weight; `place` turns a manifest into the exact files to write: every byte that is not
a weight, and the extent of every part that is. Who moves the weights (the pipeline) needs no
format, and who knows the format does no output. `parse(written) == placed` is a law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from flyweight.cursor import Readable
from flyweight.dtypes import DType
from flyweight.errors import CUT_SHORT, FlyweightError, MalformedError, UnsupportedError
from flyweight.gate import Verdict
from flyweight.manifest import Entry, Extent, Manifest, Typed
from flyweight.sources import Bundle
from flyweight.tensor import CodecSpec, TensorSpec

__all__ = ["ENTRY_KIND_NBYTES", "ENTRY_NBYTES", "Chunks", "Container", "Finding", "Floor", "Image", "Placement", "check_cover"]

ENTRY_NBYTES = 128
ENTRY_KIND_NBYTES = 1024
"""What a row of a table of tensors is charged to the budget of a parse, beside its name, and what a shape not met before is:
at least the objects they are kept as and those they are read through."""

Chunks = Sequence[tuple[int, bytes]]
"""Bytes at their offsets in a file."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a file breaks (error), or what a careful reader would object to (warning)."""

    level: Literal["error", "warning"]
    code: str
    message: str
    tensor: str | None = None
    offset: int | None = None


class Image(NamedTuple):
    """A file to write: its size and the chunks at their offsets. What no chunk and no part covers is zero."""

    nbytes: int
    chunks: Chunks


class Placement(NamedTuple):
    """The manifest with every extent filled in, and the files around the weights.

    `copies` are side files taken over unchanged from the source bundle. `digests` are the extents whose BLAKE3 the container
    wants to record, by tensor or by a key that is no tensor's name; `Container.seal` gets them when the weights are written.
    """

    manifest: Manifest
    images: Mapping[str, Image]
    copies: Mapping[str, Extent] = {}
    digests: Mapping[str, Extent] = {}

    @property
    def nbytes(self) -> int:
        return sum(i.nbytes for i in self.images.values()) + sum(e.nbytes for e in self.copies.values())


class Floor(NamedTuple):
    """How near a tensor must stay to its source, and the codec for one that does not."""

    cosine: float
    otherwise: CodecSpec


class Container(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    """What people call it."""
    dialect: ClassVar[str]
    """The tensor naming it requires; empty when it takes any."""
    is_directory: ClassVar[bool]
    suffix: ClassVar[str] = ""
    holds_files: ClassVar[bool] = False
    """Whether one file of it holds the side files too. A directory always does."""
    expert_layout: ClassVar[str] = ""
    """Whose arrangement of experts its loaders want (see `models.experts`); empty when any is as good."""
    vector_dtype: ClassVar[DType | None] = None
    """The element type its readers demand of dense vectors, if they do."""
    exactly: ClassVar[Mapping[DType, DType]] = {}
    """Element types of dense tensors that are stored as another where no value changes, because its readers know that one."""
    presets: ClassVar[Mapping[str, CodecSpec]] = {}
    """Names of quantizations that mean a form of its own here."""
    floors: ClassVar[Mapping[str, Floor]] = {}
    """What some of these promise of every tensor."""

    @abstractmethod
    def probe(self, bundle: Bundle) -> bool:
        """Whether the bundle is of this format, by content. Reads a few bytes at most; never raises on bad ones."""

    def view(self, bundle: Bundle) -> Bundle:
        """The bundle as extents see it, where members are stored compressed. `parse` takes either."""
        return bundle

    @abstractmethod
    def parse(self, bundle: Bundle) -> Manifest:
        """The manifest, fully validated: every extent lies inside its file, none overlap."""

    @abstractmethod
    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        """Whether a tensor in this codec can be stored as it is."""

    def doubts(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        """What a strict reader might object to though the format allows it: (code, message) pairs for `verify`."""
        return ()

    def facts(self, bundle: Bundle) -> Mapping[str, Any]:
        """What the file says of itself beside tensors, metadata and side files, for people and for JSON."""
        return {}

    def describe(self, entries: Mapping[str, Entry], metadata: Mapping[str, Typed]) -> Mapping[str, Typed]:
        """The metadata with what it says of the tensors made true, for tensors that are new."""
        return metadata

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        """The same arithmetic as this container stores it for the tensor `name`: its own bit order, word type, identity."""
        return codec

    def prove(self, bundle: Bundle, entry: Entry) -> None:
        """Check what lies beside a tensor's bytes, such as the head of its block, before they are used; `parse` reads none."""
        return

    def gated(self, manifest: Manifest) -> Sequence[str]:
        """The tensors in forms that may be used only behind an accuracy gate."""
        return ()

    def verdict(self, bundle: Bundle) -> Verdict | None:
        """What a checkpoint says of the gate it went through."""
        return None

    def certify(self, placement: Placement, verdict: Verdict, read: Callable[[Extent], bytes]) -> Mapping[str, bytes]:
        """The files that record a verdict, whole, once all else is written; none where a format has no place for it."""
        return {}

    def audit(self, bundle: Bundle) -> Iterator[Finding]:
        """Every broken rule, not only the first, digests included; also of a file that `parse` refuses."""
        try:
            self.parse(bundle)
        except FlyweightError as error:
            yield Finding("error", error.code, error.message, error.tensor, error.offset)

    @abstractmethod
    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """Where everything goes in files under `name` (a file name; ignored by directories)."""

    def seal(self, placement: Placement, digests: Mapping[str, str], read: Callable[[Extent], bytes]) -> Mapping[str, Chunks]:
        """What can be said only when the weights are written, by file: it replaces bytes that `place` left provisional.

        `digests` has the BLAKE3 of each extent in `placement.digests`; `read` returns bytes already written.
        """
        return {}

    def require_carried(self, manifest: Manifest) -> None:
        for entry in manifest.entries.values():
            if not self.carries(entry.spec, entry.codec):
                raise UnsupportedError(f"{self.name} cannot hold {entry.spec} as {entry.codec}", tensor=entry.name)


def check_cover(spans: Iterable[tuple[str, int, int]], start: int, source: Readable, alignment: int = 1) -> None:
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
        hint = CUT_SHORT if code == "E_PAST_END" else None
        raise MalformedError(problem, code=code, file=source.name, tensor=name, offset=begin, hint=hint)
    if source.size > expected:
        raise MalformedError(
            f"{source.size - expected} bytes after the last tensor", code="E_TRAILING", file=source.name, offset=expected
        )
