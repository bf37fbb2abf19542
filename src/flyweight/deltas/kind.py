"""What a kind of delta is: how an array is rebuilt from the base's and from what a file stores, and how that is made.

Arrays are flat here, and are rebuilt a range at a time, so that neither way needs more memory than some ranges take. A range
begins at a multiple of CHUNK elements, and ends at one or at the end of the array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from flyweight.codecs.casts import cast_into
from flyweight.codecs.entropy_coded import CHUNK
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.tensor import TensorSpec

Array = np.ndarray[Any, Any]
_F32 = np.dtype(np.float32)
Elements = Callable[[int, int], Array]
"""Elements start..stop of a flat array, in its stored type: `read(start, stop)`."""


class StoredArray(Protocol):
    """A one-dimensional array in a file, of which nothing is read before it is asked for."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, at: slice, /) -> Array:
        """A piece of it, aligned and read-only."""


class Record(NamedTuple):
    """An array to be stored: the pieces are made when they are asked for, and are all asked for before the next record."""

    field: str
    dtype: str
    """NumPy's name of the type."""
    pieces: Iterable[Array]


class Kind(ABC):
    """One array as a file has it. A class is a line in `KINDS`, and one file."""

    strategy: ClassVar[str]
    fields: ClassVar[Mapping[str, tuple[str, ...]]]
    """The arrays it stores, in order, and the types that each may have."""
    options: ClassVar[frozenset[str]] = frozenset()
    """What a user may say of how it is made."""

    def __init__(self, spec: TensorSpec, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        """`spec` is of the array that is rebuilt, `about` what the header says of it; `arrays` has each of `fields`, in a type
        that it may have. MalformedError where they do not agree, as far as that is known without reading an array."""
        self.spec, self.arrays = spec, arrays

    def check(self) -> None:
        """MalformedError for stored values that no writer makes, such as an index outside the array. They are read for it,
        a piece at a time, once, before the first range is rebuilt."""
        return

    def complaint(self) -> str | None:
        """Stored numbers that are NaN or infinite: well-formed, and what is rebuilt is no model. They are read for it."""
        return None

    @abstractmethod
    def rebuild(self, start: int, stop: int, base: Array, out: Array) -> None:
        """A range, into `out`, whose type is that of `spec`. `base` has the same range of the base, in its own type; where the
        base has ended, zeros."""

    @classmethod
    @abstractmethod
    def make(cls, base: Elements, tuned: Elements, spec: TensorSpec, about: dict[str, Any], **options: Any) -> Iterator[Record]:
        """The records that rebuild `tuned`. What the header must say beside strategy, shape, type and fields goes into `about`,
        which is right when the last record has been taken."""


class Additive(Kind):
    """A kind that adds numbers to the base: both are f32, and so is their sum, rounded once to the type of the result."""

    def rebuild(self, start: int, stop: int, base: Array, out: Array) -> None:
        values = out if out.dtype == _F32 else np.empty(len(out), _F32)
        cast_into(base, values)
        self.add(start, stop, values)
        if values is not out:
            cast_into(values, out)

    @abstractmethod
    def add(self, start: int, stop: int, values: Array) -> None:
        """Add elements start..stop of the delta to f32 `values`, in place."""


def array_spec(spec: TensorSpec) -> TensorSpec:
    """A stored array as a kind sees it: what is narrower than a byte is bytes."""
    return TensorSpec((spec.nbytes,), DType.U8) if spec.dtype.bits % 8 else spec


def ranges(size: int, chunks: int = 1) -> Iterator[tuple[int, int]]:
    """All of an array of `size` elements, so many chunks at a time."""
    return ((start, min(start + chunks * CHUNK, size)) for start in range(0, size, chunks * CHUNK))


def require(agrees: bool, message: str) -> None:
    """MalformedError E_DELTA unless what a file says of a tensor agrees."""
    if not agrees:
        raise MalformedError(message, code="E_DELTA")
