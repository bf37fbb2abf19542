"""Where a decoder's weights come from, by their HF names.

`Tensors` leaves them where they are: views on the mapped file, which the machine reads when they are first used and may drop
again. `Streamed` has two buffers of its own, each the size of the largest layer, and reads the next layer into one while the
other is computed with: memory is bounded by two layers however large the model is. The output matrix then comes in pieces
no larger than a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from threading import Thread
from typing import Any, Generic, TypeVar

import numpy as np

from flyweight.checkpoint import Checkpoint, as_array
from flyweight.errors import FlyweightError
from flyweight.manifest import Entry
from flyweight.models import Blueprint, blueprint
from flyweight.runtime.ahead import read_ahead
from flyweight.tensor import EncodedTensor, TensorSpec, has_rows

__all__ = ["Streamed", "Tensors"]

Array = np.ndarray[Any, Any]
L = TypeVar("L")
Held = Mapping[str, EncodedTensor]

_ALIGNMENT = 64


class Tensors(Mapping[str, EncodedTensor]):
    """The tensors of one model, as views on its files: nothing is read before it is used."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        try:
            self.blueprint: Blueprint = blueprint(checkpoint.manifest, checkpoint.read)
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name) from None

    def __getitem__(self, name: str) -> EncodedTensor:
        return self.checkpoint.encoded(self.blueprint.tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.blueprint.tensors)

    def __len__(self) -> int:
        return len(self.blueprint.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.blueprint.tensors

    def entry(self, name: str) -> Entry:
        return self.checkpoint.manifest.entries[self.blueprint.tensors[name]]

    @property
    def output_name(self) -> str:
        return "model.embed_tokens.weight" if self.blueprint.config.tied else "lm_head.weight"

    def steps(self) -> list[list[str]]:
        """The tensors that one token needs, in order: those of each layer, then the output. Of an embedding it needs a row."""
        steps: list[list[str]] = [[] for _ in range(self.blueprint.config.dims.layers)]
        for name in self:
            if name.startswith("model.layers."):
                steps[int(name.split(".", 3)[2])].append(name)
        return [*steps, ["model.norm.weight", self.output_name]]

    def layers(self, make: Callable[[Held, int], L]) -> Iterable[L]:
        """What `make` builds of the tensors of each layer, in order, as often as it is iterated over."""
        read_ahead(self.checkpoint, [[*map(self.entry, step)] for step in self.steps()])
        return [make(self, index) for index in range(self.blueprint.config.dims.layers)]

    def output(self, make: Callable[[EncodedTensor], L]) -> Iterable[tuple[slice, L]]:
        """What `make` builds of the output matrix, and which of its rows each has."""
        tensor = self[self.output_name]
        return [(slice(0, tensor.spec.rows), make(tensor))]


Piece = tuple[tuple[str, int, int], ...]
"""Tensors to read together: name, first row, last row (both 0: all of it)."""


class Streamed(Tensors):
    """A layer is there while it is used and no longer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._pieces: list[Piece] = [tuple((name, 0, 0) for name in step) for step in self.steps()[:-1]]
        largest = max(map(self._nbytes, self._pieces), default=0)
        self._outputs = list(self._cut(self.output_name, largest))
        self.buffer_nbytes = max(largest, *(self._nbytes(((self.output_name, *rows),)) for rows in self._outputs))
        self._pieces += [((self.output_name, *rows),) for rows in self._outputs]
        self._buffers = [np.empty(self.buffer_nbytes, np.uint8) for _ in range(2)]
        self._next: tuple[int, _Reading] | None = None
        self._turn = count()

    @property
    def nbytes(self) -> int:
        """What one token has read: all layers, and the output."""
        return sum(map(self._nbytes, self._pieces))

    def layers(self, make: Callable[[Held, int], L]) -> Iterable[L]:
        return _Stream(lambda index: make(self._take(index), index), self.blueprint.config.dims.layers)

    def output(self, make: Callable[[EncodedTensor], L]) -> Iterable[tuple[slice, L]]:
        first = self.blueprint.config.dims.layers

        def piece(index: int) -> tuple[slice, L]:
            start, stop = self._outputs[index]
            return slice(start, stop or None), make(self._take(first + index)[self.output_name])

        return _Stream(piece, len(self._outputs))

    def _cut(self, name: str, nbytes: int) -> Iterator[tuple[int, int]]:
        entry = self.entry(name)
        if not has_rows(entry.spec, entry.parts):
            yield 0, 0
            return
        rows = entry.spec.rows
        step = max(nbytes * rows // max(entry.nbytes, 1), 1)
        for start in range(0, rows, step):
            yield start, min(start + step, rows)

    def _parts(self, piece: Piece) -> Iterator[tuple[str, str, TensorSpec, TensorSpec, str, int]]:
        """For every part: tensor, part, spec of what is read of the tensor, spec of the part's share, file and offset."""
        for name, start, stop in piece:
            entry = self.entry(name)
            for part, whole in entry.parts.items():
                extent = entry.extents[part]
                if stop:
                    spec = TensorSpec((stop - start, *entry.spec.shape[1:]), entry.spec.dtype)
                    share = TensorSpec((stop - start, *whole.shape[1:]), whole.dtype)
                    yield name, part, spec, share, extent.file, extent.offset + start * (extent.nbytes // entry.spec.rows)
                else:
                    yield name, part, entry.spec, whole, extent.file, extent.offset

    def _nbytes(self, piece: Piece) -> int:
        return sum(-(-share.nbytes // _ALIGNMENT) * _ALIGNMENT for _, _, _, share, _, _ in self._parts(piece))

    def _read(self, piece: Piece, buffer: Array) -> Held:
        held: dict[str, EncodedTensor] = {}
        at = 0
        for name, part, spec, share, file, offset in self._parts(piece):
            room = buffer.data[at : at + share.nbytes]
            self.checkpoint.source(file).read_into(offset, room)
            codec = self.checkpoint.proven(self.blueprint.tensors[name]).codec
            tensor = held.setdefault(name, EncodedTensor(spec, codec, {}))
            parts = dict(tensor.parts) | {part: as_array(room, share)}
            held[name] = EncodedTensor(spec, tensor.codec, parts)
            at += -(-share.nbytes // _ALIGNMENT) * _ALIGNMENT
        return held

    def _begin(self, index: int) -> _Reading:
        if self._next:
            self._next[1].join()  # one reader at a time, and none in a buffer that is given away
        buffer = self._buffers[next(self._turn) % 2]
        return _Reading(lambda: self._read(self._pieces[index], buffer))

    def _take(self, index: int) -> Held:
        """A piece, its buffer kept until the next is asked for; the one that follows is being read meanwhile."""
        pending = self._next[1] if self._next and self._next[0] == index else self._begin(index)
        held = pending.result()
        following = (index + 1) % len(self._pieces)
        self._next = following, self._begin(following)
        return held


class _Reading(Thread):
    """A read under way. A daemon: whoever stops the program does not wait for a layer that nobody will use."""

    def __init__(self, read: Callable[[], Held]) -> None:
        super().__init__(name="layer", daemon=True)
        self._read = read
        self._held: Held | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._held = self._read()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the caller's
            self._error = error

    def result(self) -> Held:
        self.join()
        if self._error:
            raise self._error
        assert self._held is not None
        return self._held


class _Stream(Generic[L]):
    def __init__(self, make: Callable[[int], L], length: int) -> None:
        self._make, self._length = make, length

    def __iter__(self) -> Iterator[L]:
        return map(self._make, range(self._length))
