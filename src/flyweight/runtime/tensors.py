"""Where a decoder's weights come from, by their canonical names.

`Tensors` leaves them where they are: views on the mapped file, which the machine reads when they are first used and may drop
again. `Streamed` has two buffers of its own, each the size of the largest layer, and reads the next layer into one while the
other is computed with: memory is bounded by two layers however large the model is. The output matrix then comes in pieces
no larger than a layer. Buffers have one user at a time (`turn`); other threads wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import count
from threading import Lock, Thread
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from flyweight.checkpoint import Checkpoint, as_array
from flyweight.codecs import take_rows
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import EncodedTensor, TensorSpec, has_rows
from flyweight.models import Blueprint, blueprint
from flyweight.runtime.read_ahead import Ahead
from flyweight.sources import Uncopied

Array = np.ndarray[Any, Any]
L = TypeVar("L")
Held = Mapping[str, EncodedTensor]
Piece = tuple[tuple[str, int, int], ...]
"""Tensors that are used together: name, first row, last row (both 0: all of it)."""

_ALIGNMENT = 64
_OUTPUT_PIECE = 32 << 20


class Share(NamedTuple):
    """What a piece has of one part of a tensor."""

    tensor: str
    part: str
    rows: TensorSpec
    """What the piece has of the tensor."""
    spec: TensorSpec
    extent: Extent


class Tensors(Uncopied, Mapping[str, EncodedTensor]):
    """The tensors of one model, as views on its files: nothing is read before it is used."""

    turn: AbstractContextManager[object] = nullcontext()
    """Held by whoever computes with the layers and the output; views can be shared."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        try:
            self.blueprint: Blueprint = blueprint(checkpoint.manifest, checkpoint.read)
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name) from None

    def __getitem__(self, name: str) -> EncodedTensor:
        return self.checkpoint.encoded(self.blueprint.tensors[name].name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.blueprint.tensors)

    def __len__(self) -> int:
        return len(self.blueprint.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.blueprint.tensors

    def entry(self, name: str) -> Entry:
        return self.checkpoint.manifest.entries[self.blueprint.tensors[name].name]

    @property
    def output_name(self) -> str:
        return "model.embed_tokens.weight" if self.blueprint.config.tied else "lm_head.weight"

    # The order of use -----------------------------------------------------------------------------

    @cached_property
    def _layers(self) -> list[Piece]:
        layers: list[list[str]] = [[] for _ in range(self.blueprint.config.dims.layers)]
        for name in self:
            if name.startswith("model.layers."):
                layers[int(name.split(".", 3)[2])].append(name)
        return [tuple((name, 0, 0) for name in layer) for layer in layers]

    @cached_property
    def steps(self) -> list[Piece]:
        """What one token needs, in order: the tensors of each layer, then the output, piece by piece."""
        return [*self._layers, *(((self.output_name, *rows),) for rows in self._cut(self.output_name, self._output_piece))]

    @property
    def _output_piece(self) -> int:
        return _OUTPUT_PIECE

    def _cut(self, name: str, nbytes: int) -> Iterator[tuple[int, int]]:
        """The rows of pieces of a tensor."""
        entry = self.entry(name)
        if not has_rows(entry.spec, entry.parts):
            yield 0, 0
            return
        rows = entry.spec.rows
        step = max(nbytes * rows // max(entry.nbytes, 1), 1)
        for start in range(0, rows, step):
            yield start, min(start + step, rows)

    def shares(self, piece: Piece) -> Iterator[Share]:
        for name, start, stop in piece:
            entry = self.entry(name)
            for part, whole in entry.parts.items():
                extent = entry.extents[part]
                rows = TensorSpec((stop - start, *entry.spec.shape[1:]), entry.spec.dtype) if stop else entry.spec
                if stop and whole.shape:
                    spec = TensorSpec((stop - start, *whole.shape[1:]), whole.dtype)
                    at = extent.offset + start * (extent.nbytes // entry.spec.rows)
                    yield Share(name, part, rows, spec, Extent(extent.file, at, spec.nbytes))
                else:
                    yield Share(name, part, rows, whole, extent)

    # What is made of it ---------------------------------------------------------------------------

    def layers(self, make: Callable[[Held, int], L]) -> Iterable[L]:
        """What `make` builds of the tensors of each layer, in order, as often as it is iterated over."""
        return _Kept(self._ahead, range(len(self._layers)), lambda step: make(self, step))

    def output(self, make: Callable[[EncodedTensor], L]) -> Iterable[tuple[slice, L]]:
        """What `make` builds of each piece of the output matrix, and which of its rows that has."""

        def piece(step: int) -> tuple[slice, L]:
            ((name, start, stop),) = self.steps[step]
            rows = slice(start, stop or None)
            return rows, make(take_rows(self[name], rows) if stop else self[name])

        return _Kept(self._ahead, range(len(self._layers), len(self.steps)), piece)

    @cached_property
    def _ahead(self) -> Ahead:
        def extents(step: int) -> Iterator[Extent]:
            return (share.extent for share in self.shares(self.steps[step]))

        return Ahead(self.checkpoint, len(self.steps), extents)


class Streamed(Tensors):
    """A layer is there while it is used and no longer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.turn = Lock()
        self.buffer_nbytes = max(map(self._nbytes, self.steps))
        self._buffers = [np.empty(self.buffer_nbytes, np.uint8) for _ in range(2)]
        self._next: tuple[int, _Reading] | None = None
        self._turn = count()

    @property
    def nbytes(self) -> int:
        """What one token has read: all layers, and the output."""
        return sum(map(self._nbytes, self.steps))

    @property
    def _output_piece(self) -> int:
        return max(map(self._nbytes, self._layers), default=0)

    def layers(self, make: Callable[[Held, int], L]) -> Iterable[L]:
        return _Stream(range(len(self._layers)), lambda step: make(self._take(step), step))

    def output(self, make: Callable[[EncodedTensor], L]) -> Iterable[tuple[slice, L]]:
        def piece(step: int) -> tuple[slice, L]:
            ((name, start, stop),) = self.steps[step]
            return slice(start, stop or None), make(self._take(step)[name])

        return _Stream(range(len(self._layers), len(self.steps)), piece)

    def _nbytes(self, piece: Piece) -> int:
        return sum(-(-share.extent.nbytes // _ALIGNMENT) * _ALIGNMENT for share in self.shares(piece))

    def _read(self, piece: Piece, buffer: Array) -> Held:
        held: dict[str, EncodedTensor] = {}
        at = 0
        for name, part, rows, spec, extent in self.shares(piece):
            room = buffer.data[at : at + extent.nbytes]
            self.checkpoint.source(extent.file).read_into(extent.offset, room)
            codec = self.checkpoint.checked_entry(self.blueprint.tensors[name].name).codec
            tensor = held.setdefault(name, EncodedTensor(rows, codec, {}))
            parts = dict(tensor.parts) | {part: as_array(room, spec)}
            held[name] = EncodedTensor(rows, tensor.codec, parts)
            at += -(-extent.nbytes // _ALIGNMENT) * _ALIGNMENT
        return held

    def _begin(self, index: int) -> _Reading:
        if self._next:
            self._next[1].join()  # one reader at a time, and none in a buffer that is given away
        buffer = self._buffers[next(self._turn) % 2]
        return _Reading(lambda: self._read(self.steps[index], buffer))

    def _take(self, index: int) -> Held:
        """A piece, its buffer kept until the next is asked for; the one that follows is being read meanwhile."""
        pending = self._next[1] if self._next and self._next[0] == index else self._begin(index)
        held = pending.result()
        following = (index + 1) % len(self.steps)
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


class _Kept(Generic[L]):
    """Made when first used, each when its weights have been brought in, and kept."""

    def __init__(self, ahead: Ahead, steps: range, make: Callable[[int], L]) -> None:
        self._ahead, self._steps, self._make = ahead, steps, make
        self._made: dict[int, L] = {}

    def __iter__(self) -> Iterator[L]:
        for step in self._steps:
            if step not in self._made:
                self._ahead.wait(step)
                self._made.setdefault(step, self._make(step))  # of two threads that make it at once, the first one's stays
            yield self._made[step]


class _Stream(Generic[L]):
    """Made whenever it is used, and not kept."""

    def __init__(self, steps: range, make: Callable[[int], L]) -> None:
        self._steps, self._make = steps, make

    def __iter__(self) -> Iterator[L]:
        return map(self._make, self._steps)
