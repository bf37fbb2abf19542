"""What a kind of statistics file is to whoever gathers: where everything will lie, and what is written there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from flyweight.containers.container import Image
from flyweight.foundation.manifest import Extent
from flyweight.foundation.tensor import TensorSpec

Array = np.ndarray[Any, Any]
Names = tuple[str, ...]
"""The matrices that share an input: canonical names without `.weight`."""


class Gathered(NamedTuple):
    """All that was added up of one input."""

    names: Names
    importance: Array
    tokens: int
    gram: Sequence[Array] = ()
    """The tiles of its lower triangle (`gram_form`); none if it was not asked for."""


@dataclass(frozen=True)
class Wanted:
    """What a file will hold."""

    inputs: Mapping[Names, int]
    """Columns of each."""
    rows: Mapping[str, int]
    """Of each matrix."""
    stored_names: Mapping[str, str]
    """What GGUF calls each matrix, `.weight` included."""
    sketch: Array
    tokens: int
    windows: int
    window: int
    texts: Sequence[str]
    about: Mapping[str, Any]
    gram: bool


class Form(Protocol):
    gives_gram: bool
    """Whether it has a place for Gram matrices."""

    def parts(self, names: Names, columns: int, *, gram: bool) -> dict[str, TensorSpec]:
        """What is written of one input."""

    def layout(self, file: str, wanted: Wanted) -> tuple[Image, Mapping[str, Extent]]:
        """Everything that is known before the first text is read, and the place of every part."""

    def values(self, gathered: Gathered) -> Iterator[tuple[str, Iterator[Array]]]:
        """Each part as runs of numbers."""
