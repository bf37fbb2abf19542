"""Statistics that are in a file. Importance is in memory; a Gram matrix is read when it is asked for, and few are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from flyweight.foundation.errors import MalformedError
from flyweight.foundation.input_statistics import InputStatistics

Array = np.ndarray[Any, Any]

_KEPT_NBYTES = 256 << 20
"""Of Gram matrices that are kept for the next matrix with the same inputs, or the next rows of this one. One always is."""


class Measured(NamedTuple):
    """What is known of one input: its importance, over how many tokens, and how its Gram matrix is read, if it was gathered."""

    importance: Array
    tokens: int
    read_gram: Callable[[], Array] | None = None


@dataclass(frozen=True, eq=False)
class StoredStatistics:
    """`Statistics` by the names of one dialect."""

    file: str
    dialect: str
    """Whose names `matrices` has: "hf" or "gguf"."""
    matrices: Mapping[str, tuple[int, int]]
    """The shape of every matrix that something is known of; 0 rows where the file does not say how many."""
    measured: Mapping[str, Measured]
    """By the same names; matrices with the same input share one."""
    sketch: Array | None = None
    """Some of the weights of the model that the statistics are of (`pipeline.model_sketch`); None where the file has none."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the file says, for people."""
    close: Callable[[], None] = lambda: None
    _inputs: dict[int, InputStatistics] = field(default_factory=dict)
    _grams: OrderedDict[int, Array] = field(default_factory=OrderedDict)
    _lock: Any = field(default_factory=Lock)

    @property
    def has_gram(self) -> bool:
        return any(measured.read_gram is not None for measured in self.measured.values())

    def inputs_of(self, name: str) -> InputStatistics | None:
        """The same object for all matrices with the same inputs."""
        measured = self.measured.get(name)
        return None if measured is None else self._inputs.setdefault(id(measured), _Inputs(self, measured))

    def gram_of(self, measured: Measured) -> Array | None:
        """Read by one thread at a time, so that two that want the same do not both have it."""
        if measured.read_gram is None:
            return None
        key = id(measured)
        with self._lock:
            if key not in self._grams:
                self._grams[key] = measured.read_gram()
            self._grams.move_to_end(key)
            while len(self._grams) > 1 and sum(gram.nbytes for gram in self._grams.values()) > _KEPT_NBYTES:
                self._grams.popitem(last=False)
            return self._grams[key]

    def __enter__(self) -> StoredStatistics:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Inputs(InputStatistics):
    """Whose Gram matrix is read when it is asked for."""

    def __init__(self, file: StoredStatistics, measured: Measured) -> None:
        for name, value in {"importance": measured.importance, "tokens": measured.tokens, "_of": (file, measured)}.items():
            object.__setattr__(self, name, value)

    _of: tuple[StoredStatistics, Measured]

    @property
    def has_gram(self) -> bool:
        return self._of[1].read_gram is not None

    @property
    def gram(self) -> Array | None:
        file, measured = self._of
        return file.gram_of(measured)


def checked_importance(importance: Array, *, name: str) -> Array:
    """f32 (columns,): finite numbers of 0 or more, not all of them 0."""
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is not finite, and refused
        values = np.asarray(importance, np.float32)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or values.min() < 0:
        raise MalformedError(
            "importance must be finite numbers of 0 or more, one for each column", code="E_STATISTICS", tensor=name
        )
    return values
