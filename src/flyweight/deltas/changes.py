"""A delta, whatever it is read from: what makes a parent into its result.

Every tensor of the result is either the parent's, as it is, or a `Change`. So is every side file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flyweight.deltas.kind import Additive, Kind
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Extent, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor of the result: rebuilt from a tensor of the parent, or new, or equal to another."""

    name: str
    spec: TensorSpec
    codec: CodecSpec = RAW
    parts: Mapping[str, Kind] = field(default_factory=dict)
    """How each stored part is rebuilt. None: the tensor is `parent`, or else `twin`, as it is."""
    layout: Mapping[str, TensorSpec] = field(default_factory=dict)
    """What each part is."""
    parent: str | None = None
    """The tensor of the parent that it is made from; None for a new one."""
    parent_spec: TensorSpec | None = None
    """What that is, if it is said."""
    twin: str | None = None
    """Another change, whose tensor it equals."""
    parent_digest: str | None = None
    digest: str | None = None
    """The BLAKE3 of the stored bytes of the parent's tensor, and of this one."""
    stored: tuple[Extent, ...] = ()
    """Where the arrays of the delta lie, and their BLAKE3."""
    stored_digest: str | None = None

    @property
    def adds(self) -> bool:
        """Whether numbers are added: the type of the result then follows from that of the parent."""
        return any(isinstance(kind, Additive) for kind in self.parts.values())

    @property
    def strategy(self) -> str:
        return next((kind.strategy for kind in self.parts.values()), "same")

    @property
    def nbytes(self) -> int:
        return sum(extent.nbytes for extent in self.stored)


class Patch(NamedTuple):
    """A side file as a patch of the parent's file of this name (`file_patch`)."""

    nbytes: int
    stored: Extent
    digest: str


class Parent(NamedTuple):
    """What a delta says of the model it was made from."""

    name: str = ""
    path: str | None = None
    """Where it was, seen from the folder of the delta."""
    format: str | None = None
    hash: str | None = None
    hashed: tuple[str, ...] = ()
    """The SHA-256 of the names and bytes of these tensors, in this order."""
    tensors: int | None = None
    """How many it has; None if it is not said."""


class Result(NamedTuple):
    """What a delta says of the model it makes. What is None is as in the parent."""

    name: str = ""
    format: str | None = None
    dialect: str | None = None
    metadata: Mapping[str, Typed] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    name: str
    """For messages."""
    changes: Mapping[str, Change]
    kept: Mapping[str, str | None] | None = None
    """The tensors taken from the parent as they are, and their digests; None: all that are not changed."""
    patches: Mapping[str, Patch] = field(default_factory=dict)
    removed_files: tuple[str, ...] = ()
    parent: Parent = field(default_factory=Parent)
    result: Result = field(default_factory=Result)
    strategy: str = ""

    @property
    def is_exact(self) -> bool:
        return not any(change.adds for change in self.changes.values())

    @property
    def has_digests(self) -> bool:
        """Whether every tensor of the result can be checked by itself."""
        return self.kept is not None


def result_dtype(before: DType) -> DType:
    """The type of a sum: the parent's, where that is a float that numbers can be rounded to."""
    return before if before.is_float and before.bits >= 16 else DType.F32
