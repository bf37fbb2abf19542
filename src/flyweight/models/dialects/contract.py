"""What a dialect does: it reads a checkpoint into canonical settings, names and text, and writes these.

Canonical are the names of settings and tensors that Hugging Face's transformers has, and the values as it stores them
(`family`, `model_config`, `transform`). A dialect knows these and itself; no dialect knows another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Extent, Manifest, Typed
from flyweight.models.family import Family
from flyweight.models.model_config import Config
from flyweight.models.transform import Renamed, Stored

if TYPE_CHECKING:
    import numpy as np

    from flyweight.models.tokenizers.vocabulary import Vocabulary

Read = Callable[[Extent], bytes]
Files = Mapping[str, Extent | bytes]

Templates = dict[str, str]
"""Chat templates by name; the one used unless asked otherwise is named "default"."""


class Blueprint(NamedTuple):
    """What a checkpoint is as a model: its settings, and where each tensor lies, by its canonical name.

    Values stay as they are stored. Where they differ from the canonical ones, a runtime computes otherwise.
    """

    config: Config
    switches: Mapping[str, bool]
    """Which tensors that may be absent are there (`TensorRule.when`)."""
    tensors: Mapping[str, Stored]
    dropped: Mapping[str, str]
    """Tensors that are no part of the model, and why."""

    @property
    def pairs(self) -> bool:
        """Whether RoPE turns neighbouring rows (2j, 2j + 1), because they lie interleaved, instead of halves (j, j + d/2)."""
        return any(stored.heads for stored in self.tensors.values())

    @property
    def gain(self) -> float:
        """What must be added to the weights of a norm before they multiply."""
        return self.config.family.graph.norm_offset - self.tensors["model.norm.weight"].add


class TokenizerTable(NamedTuple):
    """What cuts text for a checkpoint that is run."""

    table: Mapping[str, Any]
    """tokenizer.json as data, unchecked."""
    bos: int | str | None
    """A token: its id, or its text."""
    eos: int | str | None
    ends: Sequence[int]
    """Tokens that end an answer."""
    add_bos: bool
    """Whether a text begins with BOS, where the table has no post-processor that adds tokens."""


class Text(NamedTuple):
    """What translating needs beside settings and tensors."""

    vocabulary: Vocabulary | None
    templates: Templates
    tokenizer_settings: Mapping[str, Any]
    """Of tokenizer_config.json, what neither a vocabulary nor templates say."""
    generation: Mapping[str, Any] | None
    """generation_config.json; None when there is none."""
    ends: Sequence[int] = ()
    """Tokens that end an answer."""
    kept: Mapping[str, Any] = {}
    """What only the source's dialect has a place for, as settings for config.json: the way back finds them there."""
    files: Files = {}
    """Other side files."""
    notes: tuple[str, ...] = ()


class Translation(NamedTuple):
    """Everything a target in another dialect needs to know. No bytes of weights are touched."""

    metadata: Mapping[str, Typed]
    files: Files = {}
    added: Mapping[str, np.ndarray[Any, Any]] = {}
    """Tensors the target needs that the source has only as settings."""
    notes: tuple[str, ...] = ()
    """What the target cannot hold."""
    tensors: Mapping[str, Renamed] = {}
    """Every source tensor that is carried, by its source name."""
    dropped: Mapping[str, str] = {}
    """Source tensors that are not carried, and why."""


class Dialect(Protocol):
    """All errors are FlyweightErrors. `read` gives the bytes of an extent."""

    name: str
    embedding: str
    """What it calls the embedding."""
    rows_of: str
    """The dialect that is the same but for the order of rows; empty where there is none."""

    def family_of(self, manifest: Manifest, read: Read) -> Family | None:
        """The family a checkpoint is of; None when it is not one we know."""

    def read_config(self, manifest: Manifest, read: Read) -> Config:
        """The settings of a checkpoint; UnsupportedError when its family is not known."""

    def stored(self, name: str, config: Config) -> Stored:
        """What a tensor is called, and how its values differ from the canonical ones."""

    def reason_to_drop(self, name: str) -> str:
        """Why a tensor that has no canonical name can be left out; empty if it cannot."""

    def read_tokenizer(self, manifest: Manifest, read: Read, rows: int) -> TokenizerTable | None:
        """For whoever runs the model, whose embedding has so many rows; None when there is no tokenizer."""

    def read_templates(self, manifest: Manifest, read: Read) -> Templates:
        """The chat templates; none is no error."""

    def read_text(self, manifest: Manifest, read: Read, config: Config) -> Text:
        """For whoever translates the model."""

    def files_of_rows(self, manifest: Manifest, read: Read) -> Files:
        """The side files as `rows_of` has them."""

    def write(self, model: Blueprint, text: Text, dense: DType | None) -> Translation:
        """All but the tensors; `dense` is the type most matrices will have. UnsupportedError for what it has no way to say."""
