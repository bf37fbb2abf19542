"""What is in a checkpoint, whatever its format: the table every container parses into and writes from.

A manifest holds no bytes of weights. `Entry.parts` says what each stored array looks like,
`Entry.extents` where it lies; a manifest that describes a file still to be written has no
extents until a container places it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flyweight.tensor import CodecSpec, Layout, TensorSpec

__all__ = ["Entry", "Extent", "Manifest", "Typed"]


class Extent(NamedTuple):
    """A run of bytes in one file of the bundle."""

    file: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class Typed(NamedTuple):
    """A metadata value with the type it has on disk: `u32`, `f32`, `bool`, `str`, or an array such as `[str]`."""

    type: str
    value: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a checkpoint: its logical spec, its codec, its stored parts and where they lie."""

    name: str
    spec: TensorSpec
    codec: CodecSpec
    parts: Layout
    extents: Mapping[str, Extent] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.spec.size if self.spec.size else 0.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a checkpoint holds.

    `dialect` names the tensor-naming convention ("hf", "gguf"), or is empty when a file has
    none. `files` are the side files (config, tokenizer, unknown ones): an Extent in the
    bundle, or bytes when their content is made anew.
    """

    format: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, Typed] = field(default_factory=dict)
    files: Mapping[str, Extent | bytes] = field(default_factory=dict)
    dialect: str = ""

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries.values())

    @property
    def weights(self) -> int:
        return sum(entry.spec.size for entry in self.entries.values())

    def value(self, key: str, default: Any = None) -> Any:
        """The plain value of a metadata key."""
        typed = self.metadata.get(key)
        return default if typed is None else typed.value
