"""A tensor of base and delta as a source of bytes: rebuilt when it is read, a range or all of it.

Whoever maps a tensor gets all of it, held in memory as long as someone uses it. Whoever reads a range has the chunks around it
rebuilt, and no more. Where the delta has a digest of the result, all that is rebuilt whole is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import NamedTuple
from weakref import ref

import numpy as np

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas.in_order import in_order
from flyweight.deltas.kind import Array, Elements, Kind, ranges
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.sources import Identity, Source

_AT_ONCE = 4
"""Chunks of a range that are rebuilt one after the other in one thread."""


class RebuiltPart(NamedTuple):
    """A stored part, of elements of whole bytes."""

    kind: Kind
    spec: TensorSpec
    base: Elements
    """The base's elements; zeros where it has ended."""
    below: RebuiltPart | None = None
    """How those are rebuilt themselves, if they are: a chain of deltas is a loop here, not a call within a call."""

    @property
    def levels(self) -> list[RebuiltPart]:
        """The chain, the first one first."""
        part: RebuiltPart | None = self
        found = []
        while part is not None:
            found.append(part)
            part = part.below
        return found[::-1]

    def rebuild(self, start: int, stop: int, out: Array) -> None:
        """A level needs its base up to the end of the last chunk, which may lie behind what the next level takes of it."""
        *levels, last = self.levels
        ends = [stop]
        for level in reversed(levels):
            ends.append(max(min(-(-ends[-1] // CHUNK) * CHUNK, level.spec.size), start))
        ends.reverse()
        before = (levels[0] if levels else last).base(start, ends[0])
        for level, end, following in zip(levels, ends, ends[1:], strict=False):
            made = np.zeros(max(end, following) - start, level.spec.dtype.storage)
            if start < end:
                level.kind.rebuild(start, end, before, made[: end - start])
            before = made[: following - start]
        last.kind.rebuild(start, stop, before, out)


class Rebuilt(Source):
    """The parts of a tensor, one behind the other."""

    def __init__(
        self,
        name: str,
        tensor: str,
        parts: Sequence[RebuiltPart],
        stamp: str,
        digest: str | None,
        explain: Callable[[], FlyweightError],
    ) -> None:
        """`stamp` changes when what it is made from does. `explain` says why the bytes are not those of the digest."""
        self.name, self.tensor = name, tensor
        self.size = sum(part.spec.nbytes for part in parts)
        self._parts, self._stamp, self._wanted, self._explain = parts, stamp, digest, explain
        self._lock = Lock()
        self._alive: Callable[[], Array | None] = lambda: None
        self._expected: Array | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.size, self._wanted or self._stamp)

    def read(self, offset: int, length: int) -> memoryview:
        self.check_range(offset, length)
        return self._whole().data.toreadonly()[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.check_range(offset, len(buffer))
        there = self._alive()
        if there is not None:
            buffer[:] = there.data[offset : offset + len(buffer)]
            return
        self._check()
        at = 0
        for part in self._parts:
            start, stop = max(offset, at), min(offset + len(buffer), at + part.spec.nbytes)
            if start < stop:
                self._fill(part, start - at, np.frombuffer(buffer[start - offset : stop - offset], np.uint8))
            at += part.spec.nbytes

    def in_memory(self, offset: int) -> bool:
        super().in_memory(offset)
        return self._alive() is not None

    def expect(self, offset: int, length: int) -> None:
        """Rebuild it now, and keep it until it is read."""
        super().expect(offset, length)
        self._expected = self._whole()

    def digest(self, offset: int = 0, length: int | None = None, *, after_piece: Callable[[], object] = lambda: None) -> str:
        found = super().digest(offset, length, after_piece=after_piece)
        if offset == 0 and length in (None, self.size):
            self._require(found)
        return found

    def part_at(self, offset: int) -> RebuiltPart | None:
        """The part that begins there."""
        at = 0
        for part in self._parts:
            if at == offset:
                return part
            at += part.spec.nbytes
        return None

    def _require(self, found: str) -> None:
        if self._wanted is not None and found != self._wanted:
            raise self._explain().at(file=self.name, tensor=self.tensor)

    @cached_property
    def _checked(self) -> bool:
        for part in self._parts:
            for level in part.levels:
                level.kind.check()
        return True

    def _check(self) -> None:
        try:
            assert self._checked
        except FlyweightError as error:
            raise error.at(file=self.name, tensor=self.tensor) from None

    def _fill(self, part: RebuiltPart, offset: int, out: Array, *, in_threads: bool = False) -> None:
        """What cannot be rebuilt is either damaged, or from another base: the digests tell."""
        try:
            _fill(part, offset, out, in_threads)
        except MalformedError as error:
            raise (self._explain() if self._wanted is not None else error).at(file=self.name, tensor=self.tensor) from None

    def _whole(self) -> Array:
        from blake3 import blake3

        with self._lock:
            there, self._expected = self._alive(), None
            if there is None:
                self._check()
                there = np.empty(self.size, np.uint8)
                at = 0
                for part in self._parts:
                    self._fill(part, 0, there[at : at + part.spec.nbytes], in_threads=True)
                    at += part.spec.nbytes
                if self._wanted is not None:
                    self._require(blake3(there.data, max_threads=blake3.AUTO).hexdigest())
                self._alive = ref(there)
            return there


def _fill(part: RebuiltPart, offset: int, out: Array, in_threads: bool) -> None:
    """The bytes of a part from `offset` on, as many as `out` takes; ranges that lie in it whole are rebuilt in place."""
    width, size = part.spec.dtype.itemsize, part.spec.size
    first = offset // width // CHUNK * CHUNK
    end = min(-(-(offset + len(out)) // width), size)

    def fill(where: tuple[int, int]) -> None:
        start, stop = (first + at for at in where)
        stop = min(-(-stop // CHUNK) * CHUNK, size)
        begin = start * width - offset
        if begin >= 0 and stop * width - offset <= len(out):
            part.rebuild(start, stop, out[begin : stop * width - offset].view(part.spec.dtype.storage))
            return
        whole = np.empty(stop - start, part.spec.dtype.storage)
        part.rebuild(start, stop, whole)
        cut = whole.view(np.uint8)[max(-begin, 0) : len(out) - begin]
        out[max(begin, 0) : max(begin, 0) + len(cut)] = cut

    pieces = ranges(end - first, _AT_ONCE)
    for _ in in_order(fill, pieces) if in_threads else map(fill, pieces):
        pass
