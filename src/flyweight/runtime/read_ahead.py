"""Read-ahead: weights are read into memory before the decoder needs them.

Mapped weights come by page faults, and at each of them the computation waits for the disk. One token needs every weight once,
in an order that is known when the model is opened, so a thread brings them in that order: layer 0, layer 1, … (within a layer
as its parts lie in their files), then the output, 16 MB at a time. The computation waits for a step before it begins with it:
its own faults would only come between, and cut what is read into small pages.

Where a file lies in that order, as our tiers do, its front is brought in while it is still being opened (`Front`).

It holds nothing and changes no result. What exceeds half of the machine's memory is not brought in: it would push out what was.
A model of which every step begins in memory is left alone, so that a warm start pays for a few system calls. What fails here
fails again, and is reported, where the bytes are read; a model that is closed is no longer brought in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from threading import Event, Thread

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Extent
from flyweight.sources import ClosedError, FileSource

_GAP = 1 << 16
_WINDOW = 16 << 20
_FRONT = 192 << 20
"""What a disk of 3 GB/s reads while a model is opened."""


class Ahead(Thread):
    """What each of so many steps needs, brought in one step after the other. A daemon: nobody waits for it who stops."""

    def __init__(self, checkpoint: Checkpoint, steps: int, extents: Callable[[int], Iterable[Extent]]) -> None:
        super().__init__(name="read ahead", daemon=True)
        self._checkpoint, self._extents = checkpoint, extents
        self._there = [Event() for _ in range(steps)]
        if self._in_memory():
            self._all_there()
        else:
            self.start()

    def wait(self, step: int) -> None:
        """Return when a step has been brought in, or will not be."""
        self._there[step].wait()

    def run(self) -> None:
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        try:
            for step, there in enumerate(self._there):
                for window in windows(self._extents(step)):
                    room -= window.nbytes
                    if room < 0:
                        return
                    self._checkpoint.source(window.file).expect(window.offset, window.nbytes)
                there.set()
        except (OSError, FlyweightError, ClosedError):
            pass
        finally:
            self._all_there()

    def _in_memory(self) -> bool:
        with suppress(OSError, FlyweightError, ClosedError):
            firsts = (extent for step in range(len(self._there)) for extent in islice(self._extents(step), 1))
            return all(self._checkpoint.source(first.file).in_memory(first.offset) for first in firsts)
        return True  # whoever reads it will say what is wrong

    def _all_there(self) -> None:
        for there in self._there:
            there.set()


class Front(Thread):
    """The beginning of a file that lies in the order of use, brought in while it is looked at; then `Ahead` takes over."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="read front", daemon=True)
        self._path = path
        self.start()

    def run(self) -> None:
        with suppress(OSError, FlyweightError), closing(FileSource(self._path, follow=False)) as source:
            front = Extent("", 0, min(source.size, _FRONT))
            if front.nbytes and not source.in_memory(front.end - 1):
                for window in windows([front]):
                    source.expect(window.offset, window.nbytes)


def windows(extents: Iterable[Extent]) -> Iterator[Extent]:
    """What to bring in, in this order: neighbours together, cut where windows of the file end."""
    for run in joined(sorted(extents)):
        at = run.offset
        while at < run.end:
            end = min((at // _WINDOW + 1) * _WINDOW, run.end)
            yield Extent(run.file, at, end - at)
            at = end


def joined(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Neighbours as one; reading a small gap costs less than going around it."""
    run: Extent | None = None
    for extent in extents:
        if run and run.file == extent.file and extent.offset - run.end < _GAP:
            run = Extent(run.file, run.offset, max(run.end, extent.end) - run.offset)
            continue
        if run:
            yield run
        run = extent
    if run:
        yield run
