"""`delta verify`: check a delta for damage, and with its base, that it gives what it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from blake3 import blake3

from flyweight.checkpoint import open_checkpoint
from flyweight.checkpoint.model_opening import base_place, read_delta
from flyweight.checkpoint.tensor_bytes import tensor_digest
from flyweight.containers.container import Finding
from flyweight.deltas.changes import Change, Delta
from flyweight.deltas.recognition import is_wdelta
from flyweight.deltas.wdelta_file import check_seal
from flyweight.foundation.errors import FlyweightError, MalformedError, ParentError
from flyweight.pipeline.execution import Progress
from flyweight.pipeline.soundness import VerifyReport
from flyweight.sources import Bundle, open_bundle

_PIECE = 1 << 20


def verify_delta(path: Path | str, *, base: Path | str | None = None, progress: Progress | None = None) -> VerifyReport:
    """Read all of a delta and compare it with its checksums. With `base`, or if it says where its base is, also rebuild every
    tensor, and compare the result and what is kept with their digests."""
    findings: list[Finding] = []
    with closing(open_bundle(path)) as bundle:
        delta = read_delta(bundle)
        findings += look_at_file(bundle, delta)
        nbytes = sum(source.size for source in bundle.values())
    place = base if base is not None else base_place(delta)
    if place is not None and os.path.exists(place) and not findings:
        findings += _look_at_result(place, path, progress)
    elif base is None and not findings:
        findings.append(Finding("warning", "E_NO_BASE", "the base is not there: the file is whole, the result was not rebuilt"))
    malformed = any(finding.level == "error" for finding in findings)
    return VerifyReport(str(path), "wdelta", len(delta.changes), nbytes, False, tuple(findings), malformed=malformed)


def look_at_file(bundle: Bundle, delta: Delta) -> Iterator[Finding]:
    """Each tensor by its own digest, so that damage has a name; what lies between them by the checksum of all."""
    damaged = False
    for change in delta.changes.values():
        try:
            _check_stored(bundle, change)
            for kind in change.parts.values():
                kind.check()
                if (complaint := kind.complaint()) is not None:
                    yield Finding("error", "E_NONFINITE", complaint, change.name)
        except FlyweightError as error:
            damaged = True
            yield Finding("error", error.code, error.message, change.name, error.offset)
    if damaged or not is_wdelta(bundle):
        return
    try:
        assert bundle.single is not None
        check_seal(bundle[bundle.single])
    except FlyweightError as error:
        yield Finding("error", error.code, error.message, None, error.offset)


def _check_stored(bundle: Bundle, change: Change) -> None:
    digest = blake3()
    for extent in change.stored:
        for at in range(extent.offset, extent.end, _PIECE):
            digest.update(bundle[extent.file].read(at, min(_PIECE, extent.end - at)))
    if change.stored_digest is not None and digest.hexdigest() != change.stored_digest:
        raise MalformedError("the bytes do not match the recorded digest", code="E_DIGEST", offset=change.stored[0].offset)


def _look_at_result(base: Path | str, path: Path | str, progress: Progress | None) -> Iterator[Finding]:
    try:
        opened = open_checkpoint(base, deltas=[path])
    except FlyweightError as error:
        yield Finding("error", error.code, error.message, error.tensor, error.offset)
        return
    with opened as result:
        differing = 0
        for name, entry in result.manifest.entries.items():
            try:
                result.check_tensor(name)
                if name not in result.manifest.digests.tensors:
                    tensor_digest(result, name)  # it can be rebuilt, which is all that is known of it
            except ParentError as error:  # of another base everything differs: once is enough
                if not differing:
                    yield Finding("error", error.code, error.message, name, error.offset)
                differing += 1
            except FlyweightError as error:
                yield Finding("error", error.code, error.message, name, error.offset)
            if progress is not None:
                progress(name, entry.nbytes, result.manifest.nbytes)
        if differing > 1:
            yield Finding("error", ParentError.default_code, f"{differing} tensors of '{base}' differ in all")
