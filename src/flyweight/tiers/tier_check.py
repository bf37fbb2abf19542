"""`verify` and `diff` of npy-dirs, which also check the tiers beside the arrays.

A sentinel proves nothing about a tier that someone else built: whoever writes weights can write their digests. The arrays do.
Every tier beside them is made again, without being written, and compared with what is there.

    E_TIER_STALE     error     its sentinel says that it was built from other arrays
    E_TIER_FORGED    error     its sentinel says that it was built from these arrays, and they give something else
    E_TIER_FOREIGN   warning   it differs from what these arrays give, and says nothing of them: Squish's, or unfinished.
                               Flyweight never runs it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from flyweight import pipeline
from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.containers.container import Finding, Image
from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline import DiffReport, VerifyReport
from flyweight.pipeline.execution import check_resources
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.transcode import carry_out
from flyweight.tiers.building import plan_tier
from flyweight.tiers.digests import content, described, files_without_weights, source_digest
from flyweight.tiers.opening import open_tier
from flyweight.tiers.sentinel import read_sentinel
from flyweight.tiers.tier_table import TIERS, Home, Tier, has_tiers

Progress = Callable[[str, int, int], None]


def verify(
    path: Path | str, *, deltas: Sequence[Path | str] = (), strict: bool = False, progress: Progress | None = None
) -> VerifyReport:
    """`pipeline.verify`, and the tiers beside the arrays of an npy-dir."""
    report = pipeline.verify(path, deltas=deltas, strict=strict, progress=progress)
    return report if report.malformed else replace(report, findings=(*report.findings, *audit(path)))


def diff(a: Path | str, b: Path | str, *, deltas: Sequence[Path | str] = (), progress: Progress | None = None) -> DiffReport:
    """`pipeline.diff`, and the tiers beside the arrays of either: one that its arrays do not give is a difference."""
    report = pipeline.diff(a, b, deltas=deltas, progress=progress)
    return replace(report, findings=tuple((side, found) for side, path in (("a", a), ("b", b)) for found in audit(path)))


def audit(path: Path | str) -> Iterator[Finding]:
    """What is wrong with the tiers beside the arrays of a model. Nothing is written."""
    root = Path(path)
    if not has_tiers(root):
        return
    there = [tier for tier in TIERS if os.path.lexists(root / tier.place)]
    if there:
        with open_checkpoint(root) as arrays:
            for tier in there:
                yield from _audit(arrays, Home(root, root), tier)


def _audit(arrays: Checkpoint, home: Home, tier: Tier) -> Iterator[Finding]:
    sentinel, tensor = read_sentinel(home.path, tier), None
    try:
        if sentinel is not None and sentinel.source != source_digest(home.root):
            yield Finding("error", "E_TIER_STALE", f"the tier {tier.name} ({tier.place}) was built from other arrays")
            return
        difference = _difference(_expected(arrays, tier), _found(home, tier))
        if difference is None:
            return
        tensor, problem = difference
    except FlyweightError as error:
        problem = error.message
    except OSError as error:
        problem = str(error.strerror)
    message = f"the tier {tier.name} ({tier.place}) does not match the arrays: {problem}"
    if sentinel is None:
        yield Finding("warning", "E_TIER_FOREIGN", f"{message}; it is never run", tensor)
    else:
        yield Finding("error", "E_TIER_FORGED", message, tensor)


class _Content(NamedTuple):
    tensors: Mapping[str, Any]
    """What each is, and the digests of its parts."""
    files: Mapping[str, str]
    """The digest of each file without weights, of a tier that is a whole model."""


def _difference(expected: _Content, found: _Content) -> tuple[str | None, str] | None:
    """The first tensor, or file, that is not as expected, and how."""
    for name in {**expected.tensors, **found.tensors}:
        if expected.tensors.get(name) != found.tensors.get(name):
            missing = name not in found.tensors
            return name, "is missing" if missing else "is not in the arrays" if name not in expected.tensors else "differs"
    for file in {**expected.files, **found.files}:
        if expected.files.get(file) != found.files.get(file):
            missing = file not in found.files
            return None, f"{file} {'is missing' if missing else 'was added' if file not in expected.files else 'differs'}"
    return None


def _found(home: Home, tier: Tier) -> _Content:
    with open_tier(home, tier) as checkpoint:
        return _Content(content(checkpoint), files_without_weights(checkpoint) if tier.is_model else {})


def _expected(arrays: Checkpoint, tier: Tier) -> _Content:
    """What building the tier would give: every step carried out, and nothing kept but digests."""
    job = plan_tier(arrays, tier)
    steps = job.plan.steps
    workers = check_resources(job, Path(arrays.bundle.name), jobs=None, max_ram=None, resume=True)

    def parts(index: int) -> dict[str, str]:
        return carry_out(job, steps[index], lambda _file, _offset, _bytes: None, measured=False)[1]

    with ThreadPoolExecutor(workers, thread_name_prefix="flyweight") as pool:
        made = dict(zip((s.name for s in steps), pool.map(parts, range(len(steps))), strict=True))
    return _Content(described(job.placement.manifest.entries.values(), made), _files(job) if tier.is_model else {})


def _files(job: Job) -> dict[str, str]:
    """The digest of each planned file that no tensor lies in."""
    placed = job.placement
    weights = {extent.file for entry in placed.manifest.entries.values() for extent in entry.extents.values()}
    found = {name: blake3(_bytes(image)).hexdigest() for name, image in placed.images.items() if name not in weights}
    for name, extent in placed.copies.items():
        found[name] = job.checkpoint.source(extent.file).digest(extent.offset, extent.nbytes)
    return dict(sorted(found.items()))


def _bytes(image: Image) -> bytes:
    made = bytearray(image.nbytes)
    for offset, chunk in image.chunks:
        made[offset : offset + len(chunk)] = chunk
    return bytes(made)
