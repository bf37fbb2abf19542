"""Carrying out a plan: check that it fits, fill what is staged with worker threads, have it judged, publish."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from flyweight.checkpoint import open_checkpoint, recorded
from flyweight.containers.abilities import EmbedsFiles, Finishes, RecordsGate
from flyweight.containers.container import Image, Placement
from flyweight.foundation import source_check
from flyweight.foundation.accuracy_gate import Measure, Verdict
from flyweight.foundation.errors import FlyweightError, InterruptedRunError, OutputError, ResourceError
from flyweight.foundation.manifest import Extent
from flyweight.foundation.source_check import CheckAgainstSource, SourceCheck
from flyweight.pipeline import memory_limit
from flyweight.pipeline.conversion_report import TensorReport
from flyweight.pipeline.gated_output import judge
from flyweight.pipeline.output.replacing import require_apart
from flyweight.pipeline.output.staging import Staging
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.plan import Step
from flyweight.pipeline.rows import SLAB_BYTES
from flyweight.pipeline.transcode import carry_out, step_memory

_BATCH, _BATCH_NBYTES = 256, 1 << 20
"""A worker takes this many tensors, or this many bytes of them, at a time."""
_EMBEDDED_COPIES = 4
"""How often an embedded file is in memory while a file is finished: as read, as placed, as read back, as placed again."""
Progress = Callable[[str, int, int], None]
"""progress(tensor, its bytes, bytes in all), called as each tensor is finished."""
ProgressOf = Callable[[str], Callable[[int, int], None] | None]
"""What is to be told of a stage by its name: how much of it is done, and of how much."""


class Examined(NamedTuple):
    """What came of running an output before it is published."""

    verdict: Verdict | None = None
    check: SourceCheck | None = None


class Outcome(NamedTuple):
    """What was done for each step of a plan, in its order."""

    reports: tuple[TensorReport, ...]
    parts: Mapping[str, Mapping[str, str]]
    """Tensor → part → the BLAKE3 of what was written."""
    resumed: int
    """Steps that an earlier run had done."""
    nbytes: int = 0
    verdict: Verdict | None = None
    check: SourceCheck | None = None

    @classmethod
    def of(cls, job: Job, lines: Mapping[str, Mapping[str, Any]], resumed: int) -> Outcome:
        """From a line of the journal for every step."""
        reports = tuple(TensorReport(**lines[step.name]["report"]) for step in job.plan.steps)
        return cls(reports, {step.name: lines[step.name]["parts"] for step in job.plan.steps}, resumed)


def carry_out_job(
    job: Job,
    destination: Path,
    *,
    jobs: int | None = None,
    max_ram: int | None = None,
    measure: Measure | None = None,
    check: CheckAgainstSource | None = None,
    gate_text: Path | str | None = None,
    allow_ungated: bool = False,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    progress_of: ProgressOf | None = None,
    approve: Callable[[], object] = lambda: None,
    measured: bool = True,
) -> Outcome:
    """Make what a plan says appear at `destination`, unless `approve`, called when all is written, raises an error.

    With `measured` values are compared with what they were, for the report.
    """
    if len(job.placement.images) > 1 and not job.container.is_directory and destination.suffix == job.container.suffix:
        raise OutputError(
            "the output has several files and needs a directory", code="E_SHARDS", file=str(destination),
            hint=f"give a directory, such as {destination.with_suffix('').name}",
        )  # fmt: skip
    if force:  # a file of a split model, or one that a link of it leads to, may lie where the whole does not
        require_apart(destination, [origin.source(file).name for origin in job.checkpoints for file in origin.files()])
    workers = check_resources(job, destination.parent, jobs=jobs, max_ram=max_ram, resume=resume)
    staging = Staging(
        destination,
        [*job.placement.images, *job.placement.copies],
        is_directory=job.container.is_directory or len(job.placement.images) > 1,
        fingerprint=job.fingerprint(),
        resume=resume,
        force=force,
    )

    def examined(staged: Path) -> Examined:
        approve()
        verdict = judge(job, staged, measure, text=gate_text, threads=jobs, max_ram=max_ram)
        if verdict is not None and not allow_ungated:
            verdict.require(file=str(destination))
        if check is None:
            return Examined(verdict)
        shown = progress_of("checking") if progress_of else None
        found = check(job.checkpoint.bundle.name, staged, threads=jobs, max_ram=max_ram, progress=shown)
        return Examined(verdict, found)

    return fill_and_publish(job, staging, workers, progress, examined, measured=measured)


def fill_and_publish(
    job: Job,
    staging: Staging,
    workers: int,
    progress: Progress | None,
    examined: Callable[[Path], Examined] = lambda _: Examined(),
    *,
    measured: bool = True,
) -> Outcome:
    """Write what the plan says, have it examined where it is staged, and make it appear; the staging directory is closed."""
    try:
        if staging.published:
            if staging.finished.keys() != {step.name for step in job.plan.steps}:
                raise OutputError(
                    "already exists", code="E_EXISTS", file=str(staging.destination), hint="use --force to replace it"
                )
            outcome = Outcome.of(job, staging.finished, len(staging.finished))
            staging.discard()
            found = _recorded(job, staging.destination)
            return outcome._replace(nbytes=job.nbytes, verdict=found.verdict, check=found.check)
        try:
            outcome, digests = _fill(job, staging, workers, progress, measured)
            _check_unchanged(job)
            found = examined(staging.out if job.container.is_directory else staging.out / next(iter(job.placement.images)))
            if found.check is not None and source_check.KEY in job.placement.manifest.metadata:
                job = replace(job, placement=_with_check(job, staging, found.check, digests))
            nbytes = job.nbytes + (_certify(job, staging, found.verdict) if found.verdict else 0)
        except InterruptedRunError:
            raise
        except FlyweightError:
            staging.discard()  # nothing a second try could build on; an interrupt or I/O error keeps it for --resume
            raise
        staging.publish()
    finally:
        staging.close()
    return outcome._replace(nbytes=nbytes, verdict=found.verdict, check=found.check)


def check_resources(job: Job, folder: Path, *, jobs: int | None, max_ram: int | None, resume: bool) -> int:
    """How many workers fit the memory; ResourceError when not even one does or the disk is too small."""
    wanted = jobs or min(os.cpu_count() or 1, 8)
    one = max((step_memory(job, step) for step in job.plan.steps), default=SLAB_BYTES)
    held = _EMBEDDED_COPIES * sum(_held(content) for content in job.placement.manifest.files.values())
    if not isinstance(job.container, EmbedsFiles):  # side files of a directory are copied a piece at a time
        held = 0
    memory_limit.require(one + held, max_ram, "one worker")
    workers = min(wanted, (memory_limit.allowed(max_ram) - memory_limit.BASE_RAM - held) // one)
    if not resume and folder.is_dir():
        free, need = shutil.disk_usage(folder).free, job.nbytes + job.nbytes // 100
        if need > free:
            raise ResourceError(
                f"the output needs {need >> 20} MiB of disk space but {free >> 20} MiB are free",
                code="E_DISK",
                file=str(folder),
                hint="free some space, or write elsewhere",
            )
    return max(int(workers), 1)


def _held(content: Extent | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.nbytes


def _fill(
    job: Job, staging: Staging, workers: int, progress: Progress | None, measured: bool
) -> tuple[Outcome, Mapping[str, str]]:
    """Write everything into staging; also the digests that the container asked for."""
    copies = {name: Image(extent.nbytes, ()) for name, extent in job.placement.copies.items()}
    staging.allocate({**job.placement.images, **copies})
    for name, extent in job.placement.copies.items():
        job.checkpoint.check_digest(extent)
        source = job.checkpoint.source(extent.file)
        for at in range(0, extent.nbytes, SLAB_BYTES):
            staging.write(name, at, source.read(extent.offset + at, min(SLAB_BYTES, extent.nbytes - at)))
    entries = job.placement.manifest.entries
    done: dict[str, dict[str, Any]] = {line["tensor"]: line for line in staging.verified(entries)}
    digests: dict[str, str] = {}

    def work(step: Step) -> None:
        name = step.name
        report, parts = carry_out(job, step, staging.write, measured=measured)
        line = staging.record(name, parts, asdict(report))
        if name in job.placement.digests:  # now, while its pages are in memory
            digests[name] = staging.digest(job.placement.digests[name])
        done[name] = line
        if progress is not None:
            progress(name, entries[name].nbytes, total)

    def work_through(batch: Sequence[Step]) -> None:
        for step in batch:
            work(step)

    resumed, total = len(done), sum(entry.nbytes for entry in entries.values())
    if progress is not None:
        for name in done:
            progress(name, entries[name].nbytes, total)
    share = max(total // (8 * workers), 1)  # what takes longer comes first, lest one worker be alone with it at the end
    todo = sorted((s for s in job.plan.steps if s.name not in done), key=lambda s: -(entries[s.name].nbytes // share))
    with ThreadPoolExecutor(workers, thread_name_prefix="flyweight") as pool:
        futures: list[Future[None]] = [pool.submit(work_through, batch) for batch in _batches(job, todo)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
    for future in futures:
        if not future.cancelled():
            future.result()
    wanted = {
        name: digests[name] if name in digests else staging.digest(extent) for name, extent in job.placement.digests.items()
    }
    _finish(job, job.placement, staging, wanted)
    return Outcome.of(job, done, resumed), wanted


def _batches(job: Job, steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Small tensors together: handing a million of them over one by one takes longer than copying them."""
    batch, nbytes = list[Step](), 0
    for step in steps:
        batch.append(step)
        nbytes += job.target(step).nbytes
        if nbytes >= _BATCH_NBYTES or len(batch) >= _BATCH:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _finish(job: Job, placement: Placement, staging: Staging, digests: Mapping[str, str]) -> None:
    """Write what the container says of the finished weights. A run killed in the middle of it writes all of it again."""
    if not isinstance(job.container, Finishes):
        return
    for file, chunks in job.container.finish(placement, digests, staging.read).items():
        for offset, chunk in chunks:
            staging.write(file, offset, memoryview(chunk))


def _with_check(job: Job, staging: Staging, check: SourceCheck, digests: Mapping[str, str]) -> Placement:
    """Write what a check found where its place is kept. Nothing moves: it is as long as what kept the place."""
    placement, manifest = job.placement, job.placement.manifest
    said = replace(manifest, metadata={**manifest.metadata, source_check.KEY: check.typed()})
    if isinstance(job.container, Finishes):
        placement = placement._replace(manifest=said)
        _finish(job, placement, staging, digests)
        return placement
    placed = job.container.place(said, job.plan.name, job.plan.shard_bytes)
    for file, image in placed.images.items():
        for now, before in zip(image.chunks, placement.images[file].chunks, strict=True):
            if now != before:
                staging.write(file, now[0], memoryview(now[1]))
    return placed


def _certify(job: Job, staging: Staging, verdict: Verdict) -> int:
    """Record a verdict in the output; by how many bytes it grew."""
    if not isinstance(job.container, RecordsGate):
        return 0
    files = job.container.certify(job.placement, verdict, staging.read)
    for name, content in files.items():
        staging.replace(name, content)
    return sum(len(content) - job.placement.images[name].nbytes for name, content in files.items())


def _recorded(job: Job, destination: Path) -> Examined:
    """What an output that is published already says of itself, where it has a place for that."""
    is_checked = source_check.KEY in job.placement.manifest.metadata
    if not job.gated and not is_checked:
        return Examined()
    with open_checkpoint(destination) as published:
        check = SourceCheck.recorded(published.manifest.metadata) if is_checked else None
        return Examined(recorded(published) if job.gated else None, check)


def _check_unchanged(job: Job) -> None:
    """A source that changed under the run makes a mixture of two models; refuse it."""
    for origin in job.checkpoints:
        for source in map(origin.source, origin.files()):
            if not source.unchanged():
                raise OutputError("the source changed while it was read", code="E_SOURCE_CHANGED", file=source.name)
