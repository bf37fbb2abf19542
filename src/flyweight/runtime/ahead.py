"""Reading ahead: the weights of a model that is going to run, asked for before they are needed.

Mapped weights come by page faults, and at each of them the computation waits for the disk. One token needs every weight once,
in an order that is known when the model is opened, so a thread asks the machine for them in that order:

    all small parts (norms, biases), which opening reads itself and would else wait for behind the large ones
    layer 0, layer 1, … (within a layer as its parts lie in their files), then the output, 4 MB at a time

It waits for each before it asks for the next, so that whatever else is read meanwhile, like the embedding of the first token,
has no long queue before it. It holds nothing and changes no result. What exceeds half of the machine's memory is not asked for:
it would push out what was. A model whose sampled pages are all in memory is left alone, so that a warm start pays for a few
system calls. What fails here fails again, and is reported, where the bytes are read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from threading import Thread

from flyweight.checkpoint import Checkpoint
from flyweight.errors import FlyweightError
from flyweight.manifest import Entry, Extent

__all__ = ["joined", "read_ahead", "windows"]

_SMALL = 1 << 16
_WINDOW = 4 << 20
_SAMPLES = 16


def read_ahead(checkpoint: Checkpoint, steps: Sequence[Sequence[Entry]]) -> Thread:
    """Have the parts of these tensors read, one step after the other. A daemon: nobody waits for a hint."""
    thread = Thread(target=_ask, args=(checkpoint, steps), name="read ahead", daemon=True)
    thread.start()
    return thread


def windows(steps: Sequence[Sequence[Entry]]) -> Iterator[Extent]:
    """What to ask for, in this order; large parts and what lies between them are asked for together."""
    extents = [[extent for entry in step for extent in entry.extents.values()] for step in steps]
    yield from (extent for step in extents for extent in step if extent.nbytes < _SMALL)
    for step in extents:
        for run in joined(sorted(extent for extent in step if extent.nbytes >= _SMALL)):
            for at in range(run.offset, run.end, _WINDOW):
                yield Extent(run.file, at, min(_WINDOW, run.end - at))


def joined(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Neighbours as one; reading a small gap costs less than going around it."""
    run: Extent | None = None
    for extent in extents:
        if run and run.file == extent.file and extent.offset - run.end < _SMALL:
            run = Extent(run.file, run.offset, max(run.end, extent.end) - run.offset)
            continue
        if run:
            yield run
        run = extent
    if run:
        yield run


def _ask(checkpoint: Checkpoint, steps: Sequence[Sequence[Entry]]) -> None:
    wanted = list(windows(steps))
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    fitting = bisect_right(list(accumulate(window.nbytes for window in wanted)), room)
    with suppress(OSError, FlyweightError):
        if all(checkpoint.source(window.file).in_memory(window.offset) for window in wanted[:: len(wanted) // _SAMPLES + 1]):
            return
        for window in wanted[:fitting]:
            checkpoint.source(window.file).expect(window.offset, window.nbytes)
