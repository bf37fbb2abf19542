"""What a container is: the interface of every container.

A container is two pure functions over one table. `parse` turns a bundle into a manifest without
reading a weight; `place` turns a manifest into the exact files to write: every byte that is not
a weight, and the extent of every part that is. Who moves the weights (the pipeline) needs no
format, and who knows the format does no output. `parse(written) == placed` is a law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal, NamedTuple

from flyweight.containers.carried import Carried
from flyweight.foundation.cursor import Readable
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import CUT_SHORT, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_SHARDS
from flyweight.foundation.manifest import Extent, Manifest
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.sources import Bundle

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

    @classmethod
    def of(cls, data: bytes) -> Image:
        """A file that is known whole."""
        return cls(len(data), ((0, data),) if data else ())


class Placement(NamedTuple):
    """The manifest with every extent filled in, and the files around the weights.

    `copies` are side files taken over unchanged from the source bundle. `digests` are the extents whose BLAKE3 the container
    wants to record, by tensor or by a key that is no tensor's name; it gets them when the weights are written (`Finishes`).
    """

    manifest: Manifest
    images: Mapping[str, Image]
    copies: Mapping[str, Extent] = {}
    digests: Mapping[str, Extent] = {}
    notes: tuple[str, ...] = ()
    """What a user should know of it."""

    @property
    def nbytes(self) -> int:
        return sum(i.nbytes for i in self.images.values()) + sum(e.nbytes for e in self.copies.values())


class DenseTypes(NamedTuple):
    """Which element types the readers of a format want plain tensors in."""

    vectors: DType | None = None
    """The one they demand of vectors, if they do."""
    exactly: Mapping[DType, DType] = {}
    """Types that are stored as another where no value changes, because its readers know that one."""
    instead: Mapping[DType, DType] = {}
    """Types that its readers do not know, and those that their values are rounded to."""


class Arrangement(NamedTuple):
    """What a format asks of the tensors of one model, by their names there."""

    copies: Mapping[str, str] = {}
    """Tensors that are stored besides, each made of another."""
    plain: Collection[str] = ()
    """Tensors that are never quantized."""
    dtypes: Mapping[str, DType] = {}
    """Element types that tensors have if they are plain, where no value changes by that."""


class Use(NamedTuple):
    """An operation of a program that has a weight as its operand. Axes are those of the picture, not of batch and channels."""

    operation: str
    """As the program calls it: conv, conv_transpose, linear, matmul, gather …"""
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    groups: int = 1


class Container(ABC):
    """A file format. What only some formats can do beside this is an ability: see `abilities`."""

    name: ClassVar[str]
    title: ClassVar[str]
    """What people call it."""
    dialect: ClassVar[str]
    """The tensor naming it requires; empty when it takes any."""
    is_directory: ClassVar[bool]
    suffix: ClassVar[str] = ""
    """How names of its files end; empty for directories."""
    expert_layout: ClassVar[str] = ""
    """Whose arrangement of experts its loaders want (see `models.experts`); empty when any is as good."""
    dense: ClassVar[DenseTypes] = DenseTypes()
    decodes: ClassVar[bool] = False
    """Whether tensors of other formats become plain unless a codec is asked for, because other readers of it know no codec."""
    codecs: ClassVar[Sequence[Carried]]
    """What it carries: a declaration that `carries` agrees with, for some shapes."""

    @abstractmethod
    def probe(self, bundle: Bundle) -> bool:
        """Whether the bundle is of this format, by content. Reads a few bytes at most; never raises on bad ones."""

    @abstractmethod
    def parse(self, bundle: Bundle) -> Manifest:
        """The manifest, fully validated: every extent lies inside its file, none overlap."""

    @abstractmethod
    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        """Whether a tensor in this codec can be stored as it is."""

    @cached_property
    def carried(self) -> Callable[[TensorSpec, CodecSpec], bool]:
        """`carries`, found out once for tensors that are alike: a plan asks, and `place` makes sure."""
        return lru_cache(1 << 12)(self.carries)

    @abstractmethod
    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """Where everything goes in files under `name` (a file name; ignored by directories)."""


def require_carried(container: Container, manifest: Manifest) -> None:
    for entry in manifest.entries.values():
        if not container.carried(entry.spec, entry.codec):
            raise UnsupportedError(f"{container.name} cannot store {entry.spec} as {entry.codec}", tensor=entry.name)


def fill_shards(sizes: Mapping[str, int], shard_bytes: int | None) -> list[list[str]]:
    """The names of tensors of these sizes, each file filled in order; a tensor larger than a file has one to itself."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, nbytes in sizes.items():
        if shard_bytes is not None and shards[-1] and used + nbytes > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += nbytes
    if len(shards) > MAX_SHARDS:
        raise UnsupportedError(
            f"{len(shards)} shards exceed the limit of {MAX_SHARDS}", code="E_SHARDS", hint="use larger shards"
        )
    return shards


def check_cover(spans: Iterable[tuple[str, int, int]], start: int, source: Readable, alignment: int = 1) -> None:
    """Tensors (name, offset, bytes) fill a file: each begins at the aligned end of the one before, the first at `start`.

    No overlap, no hole, nothing after the last but its padding, which may be missing.
    """
    expected = start
    for name, begin, nbytes in spans:
        end = begin + nbytes
        if (begin - start) % alignment:
            code, problem = "E_ALIGNMENT", f"offset {begin - start} is not a multiple of the alignment {alignment}"
        elif end > source.size:
            code, problem = "E_PAST_END", f"bytes {begin}..{end} are beyond the end of the file at {source.size}"
        elif begin < expected:
            code, problem = "E_OVERLAP", f"the tensor begins {expected - begin} bytes before the end of another"
        elif begin > expected:
            code, problem = "E_HOLE", f"{begin - expected} unused bytes before the tensor"
        else:
            expected = end + -end % alignment
            continue
        hint = CUT_SHORT if code == "E_PAST_END" else None
        raise MalformedError(problem, code=code, file=source.name, tensor=name, offset=begin, hint=hint)
    if source.size > expected:
        raise MalformedError(
            f"{source.size - expected} bytes after the last tensor", code="E_TRAILING", file=source.name, offset=expected
        )
