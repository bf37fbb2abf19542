"""What must hold for every input of every target, however hostile.

`limited` bounds one execution: its CPU time, and its memory beyond the peak of the process before it. What all containers
promise is here; what another target promises is beside it in `targets`.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from types import FrameType

from flyweight.checkpoint import Checkpoint, read_checkpoint
from flyweight.containers.abilities import Audits, Inflates, KnowsUses, ReadsFiles, Restates, Summarises, Warns
from flyweight.containers.container import Container
from flyweight.foundation import strict_json
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Extent, Manifest
from flyweight.sources import Bundle, MemoryBundle
from fuzz.framing import Input
from support.materialise import from_bundle, materialise

__all__ = [
    "MAX_CPU_SECONDS",
    "MAX_PROCESS_BYTES",
    "BrokenPromiseError",
    "check_container",
    "limited",
    "memory_budget",
    "promise",
]

MAX_CPU_SECONDS = 2.0
MAX_PROCESS_BYTES = 512 << 20
MAX_DECODED = 1 << 18
"""Numbers decoded in one execution; a few bytes may stand for very many zeros."""


MAX_WRITTEN = 1 << 20
"""Bytes written again, likewise."""


class BrokenPromiseError(AssertionError):
    pass


def promise(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def memory_budget(nbytes: int) -> int:
    """What an input of this size may take."""
    return (64 << 20) + 16 * nbytes


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _late(_signal: int, _frame: FrameType | None) -> None:
    raise BrokenPromiseError(f"an execution took more than {MAX_CPU_SECONDS:g} s of CPU time")


@contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """An execution on an input of `nbytes`: interrupted when it takes too much time, an error when it took too much memory."""
    signal.signal(signal.SIGPROF, _late)
    before = _peak()
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    begun = time.thread_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    # Where native code is at work, the signal waits until it is done.
    promise(time.thread_time() - begun < MAX_CPU_SECONDS, f"an execution took {time.thread_time() - begun:.1f} s")
    taken = _peak() - before
    promise(taken <= memory_budget(nbytes), f"an execution took {taken >> 20} MB for {nbytes} bytes")


def check_container(container: Container, given: Input, *, again: bool = True) -> str:
    """Parse, look at what was parsed, decode it, and with `again` write and parse it once more. Returns how it ended."""
    stored = MemoryBundle(given.files, is_directory=given.is_directory)
    recognised = container.probe(stored)
    promise(type(recognised) is bool, "a probe answers yes or no")
    if given.is_directory and not recognised and not container.is_directory:
        return "not recognised"  # and never parsed: what is in a directory decides that alone
    try:
        bundle = container.view(stored) if isinstance(container, Inflates) else stored
        checkpoint = read_checkpoint(bundle, container)
    except FlyweightError as error:
        return error.code
    # Weights of a Core ML program may share blobs, and small ones lie in the program, which is kept as a file.
    own = container.reads if isinstance(container, ReadsFiles) else ()
    check_manifest(checkpoint.manifest, bundle, twins=container.name == "coreml", but=own)
    examined(container, bundle, checkpoint.manifest)
    code = decoded(checkpoint)
    if again:
        code += placed_again(container, checkpoint)
    return code


def examined(container: Container, bundle: Bundle, manifest: Manifest) -> None:
    """What only some containers tell of a model that can be opened: they do, without an error."""
    if isinstance(container, Summarises):
        strict_json.dumps(dict(container.summary(bundle)))
    if isinstance(container, Warns):
        list(container.warnings(bundle, manifest))
    if isinstance(container, KnowsUses):
        with suppress(FlyweightError):  # operations that hold no weights are looked at for this alone
            promise(container.uses(bundle).keys() <= manifest.entries.keys(), "uses of tensors that are not there")
    if isinstance(container, Restates):
        list(container.restated(bundle))
    if isinstance(container, Audits):
        list(container.audit(bundle))


def check_manifest(manifest: Manifest, bundle: Bundle, *, twins: bool = False, but: Sequence[str] = ()) -> None:
    """Every part lies inside its file, has the size its layout says, and shares no byte with another: but for `twins`, which
    share them all, and with the files named in `but`."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for entry in manifest.entries.values():
        promise(entry.parts.keys() == entry.extents.keys(), "parts without a place")
        for part, extent in entry.extents.items():
            promise(extent.nbytes == entry.parts[part].nbytes, "a part of another size than its layout")
            spans.setdefault(extent.file, []).append((extent.offset, extent.end))
    for name, extent in manifest.files.items():
        if isinstance(extent, Extent) and name not in but:
            spans.setdefault(extent.file, []).append((extent.offset, extent.end))
    for file, runs in spans.items():
        runs = sorted(run for run in (set(runs) if twins else runs) if run[0] < run[1])
        size = (bundle[file] if file in bundle else bundle.siblings()[file]).size
        promise(not runs or (runs[0][0] >= 0 and max(end for _, end in runs) <= size), f"an extent outside {file!r}")
        promise(all(before[1] <= after[0] for before, after in pairwise(runs)), f"extents of {file!r} overlap")


def decoded(checkpoint: Checkpoint) -> str:
    """Every tensor that is not too large decodes, to the shape it says, or is refused."""
    code, left = "parsed", MAX_DECODED
    for name, entry in checkpoint.manifest.entries.items():
        left -= entry.spec.size
        if left < 0:
            return f"{code}, more than was decoded"
        try:
            promise(checkpoint[name].shape == entry.spec.shape, "a tensor of another shape than its entry says")
        except FlyweightError as error:
            code = f"parsed, {error.code}"
    return code


def placed_again(container: Container, checkpoint: Checkpoint) -> str:
    """What was parsed can be written, where the container writes such a thing, and parses as what was written."""
    manifest, bundle = checkpoint.manifest, _Around(checkpoint.bundle)
    if manifest.nbytes > MAX_WRITTEN:
        return ", too large to write"
    try:
        files = {name: checkpoint.read(extent) for name, extent in manifest.files.items()}
        placed = container.place(replace(manifest, files=files), f"again{container.suffix}")
        written = materialise(placed, from_bundle(manifest, bundle), bundle, container)
    except FlyweightError as error:
        return f", not written: {error.code}"
    promise(sum(map(len, written.values())) == placed.nbytes, "a placement has another size than it says")
    parsed = container.parse(MemoryBundle(written, is_directory=container.is_directory or len(written) > 1))
    promise(dict(parsed.entries) == dict(placed.manifest.entries), "parsing what was placed gives other tensors")
    kept = {key: parsed.metadata.get(key) for key in placed.manifest.metadata}  # some writers add what readers ask for
    promise(repr(kept) == repr(dict(placed.manifest.metadata)), "parsing what was placed gives other metadata")
    for name, entry in manifest.entries.items():
        new = parsed.entries[name]
        promise((new.spec, new.codec, new.parts) == (entry.spec, entry.codec, entry.parts), "a tensor changed its form")
    return ", written again"


class _Around(dict[str, object]):
    """A bundle together with its siblings, where the parts of a split file lie."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self._bundle = bundle

    def __missing__(self, name: str) -> object:
        return self._bundle[name] if name in self._bundle else self._bundle.siblings()[name]
