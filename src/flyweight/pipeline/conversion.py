"""`convert`: plan, check that it fits, carry out with worker threads, publish."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

import flyweight
from flyweight.checkpoint import Checkpoint, open_checkpoint, recorded, require_passed
from flyweight.containers import CONTAINERS, container_named
from flyweight.containers.abilities import EmbedsFiles, Finishes, RecordsGate
from flyweight.containers.container import Container, Image
from flyweight.containers.options import Extras
from flyweight.foundation.accuracy_gate import Measure, Verdict
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import (
    FlyweightError,
    InterruptedRunError,
    OutputError,
    ResourceError,
    UnknownFormatError,
    UnsupportedError,
)
from flyweight.foundation.manifest import Extent
from flyweight.pipeline import memory_limit
from flyweight.pipeline.arguments import as_count, as_dtype, as_path, as_size, check_name
from flyweight.pipeline.conversion_report import ConversionReport, TensorReport
from flyweight.pipeline.gated_output import judge
from flyweight.pipeline.output.replacing import require_apart
from flyweight.pipeline.output.staging import Staging
from flyweight.pipeline.plan import Plan, Step, make_plan
from flyweight.pipeline.quantization_names import recipe_for
from flyweight.pipeline.recipe import Recipe, load_recipe
from flyweight.pipeline.rows import SLAB_BYTES
from flyweight.pipeline.transcode import carry_out, step_memory
from flyweight.sources import FileSource

__all__ = [
    "Outcome",
    "Progress",
    "carry_out_plan",
    "check_resources",
    "conflict_of",
    "convert",
    "fill_and_publish",
    "fingerprint",
    "plan_conversion",
    "target_container",
]

_EXTENSION = re.compile(r"\.[a-z][a-z0-9]{1,11}")
_BATCH, _BATCH_NBYTES = 256, 1 << 20
"""A worker takes this many tensors, or this many bytes of them, at a time."""
_EMBEDDED_COPIES = 4
"""How often an embedded file is in memory while a file is finished: as read, as placed, as read back, as placed again."""
Progress = Callable[[str, int, int], None]
"""progress(tensor, its bytes, bytes in all), called as each tensor is finished."""


class Outcome(NamedTuple):
    """What was done for each step of a plan, in its order."""

    reports: tuple[TensorReport, ...]
    parts: Mapping[str, Mapping[str, str]]
    """Tensor → part → the BLAKE3 of what was written."""
    resumed: int
    """Steps that an earlier run had done."""
    nbytes: int = 0
    verdict: Verdict | None = None

    @classmethod
    def of(cls, plan: Plan, lines: Mapping[str, Mapping[str, Any]], resumed: int) -> Outcome:
        """From a line of the journal for every step."""
        reports = tuple(TensorReport(**lines[step.target.name]["report"]) for step in plan.steps)
        return cls(reports, {step.target.name: lines[step.target.name]["parts"] for step in plan.steps}, resumed)


def target_container(destination: Path, to: str | None) -> Container:
    """The container asked for, or the one the destination's name says."""
    if to is not None:
        return container_named(to)
    for container in CONTAINERS:
        if container.suffix and destination.suffix == container.suffix:
            return container
    if _EXTENSION.fullmatch(destination.suffix):  # model.onnx; but Qwen2.5-0.5B-hf is a directory's name
        raise UnknownFormatError(
            f"no format is known for '{destination.suffix}'", file=str(destination), hint="give the format with --to"
        )
    return container_named("hf")


def conflict_of(container: Container, quant: str | None, has_recipe: bool, extras: Extras | None) -> str | None:
    """Why what is asked of one format alone does not go with the rest, or None."""
    if extras is None or extras == type(extras)():
        return None
    if extras.format != container.name:
        return f"the target is {container.name}, but options of {container_named(extras.format).title} are given"
    return extras.conflict(quant, has_recipe)


def plan_conversion(
    checkpoint: Checkpoint,
    destination: Path,
    *,
    to: str | None = None,
    quant: str | None = None,
    recipe: Path | str | Recipe | None = None,
    dtype: DType | str | None = None,
    shard_bytes: int | str | None = None,
    max_ram: int | str | None = None,
    extras: Extras | None = None,
    allow_ungated: bool = False,
) -> Plan:
    """What `convert` would do. ResourceError if a codec must be fitted to a tensor that does not fit in memory; GateError if
    the checkpoint itself has not passed its accuracy gate.
    """
    if quant is not None and recipe is not None:
        raise ValueError("give a quantization or a recipe, not both")
    check_name("to", to)
    check_name("quant", quant)
    container = target_container(destination, to)
    if conflict := conflict_of(container, quant, recipe is not None, extras):
        raise ValueError(conflict)
    require_passed(checkpoint, allow_ungated=allow_ungated)
    if recipe is not None:
        chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    else:
        chosen = recipe_for(container, quant or "keep", extras)
    return make_plan(
        checkpoint,
        container,
        destination.name,
        recipe=chosen,
        dtype=as_dtype(dtype),
        shard_bytes=as_size("shard_bytes", shard_bytes),
        max_ram=as_size("max_ram", max_ram),
        draft=open_checkpoint(extras.draft, checks_digests=True) if extras and extras.draft else None,
        files=extras.files() if extras else None,
    )


def convert(
    source: Path | str,
    destination: Path | str,
    *,
    to: str | None = None,
    quant: str | None = None,
    recipe: Path | str | Recipe | None = None,
    dtype: DType | str | None = None,
    shard_bytes: int | str | None = None,
    jobs: int | None = None,
    max_ram: int | str | None = None,
    extras: Extras | None = None,
    measure: Measure | None = None,
    gate_text: Path | str | None = None,
    allow_ungated: bool = False,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert a checkpoint. Memory does not grow with the model; the destination appears complete or not at all.

    Sizes are bytes, or text such as "5G". If there is an accuracy gate, the output is measured before it is published, on
    `gate_text` or on text that the source model generates. An output that fails, or that cannot be measured because there is
    no `measure`, is published only with `allow_ungated`, and records that.
    """
    started = time.perf_counter()
    destination = Path(os.path.abspath(as_path("destination", destination)))
    jobs, max_ram = as_count("jobs", jobs), as_size("max_ram", max_ram)
    if force:
        beside = (recipe if isinstance(recipe, Path | str) else None, gate_text, *(extras.inputs if extras else ()))
        require_apart(destination, [source, *(path for path in beside if path is not None)])
    with open_checkpoint(source, checks_digests=True) as checkpoint:
        plan = plan_conversion(
            checkpoint, destination, to=to, quant=quant, recipe=recipe, dtype=dtype, shard_bytes=shard_bytes, max_ram=max_ram,
            extras=extras, allow_ungated=allow_ungated,
        )  # fmt: skip
        if gate_text is not None and plan.gate is None:
            raise UnsupportedError(
                "there is a text to measure accuracy on, but no accuracy gate",
                code="E_RECIPE",
                hint="use a recipe with a [gate]",
            )
        done = carry_out_plan(
            plan, destination, jobs=jobs, max_ram=max_ram, measure=measure, gate_text=gate_text, allow_ungated=allow_ungated,
            resume=resume, force=force, progress=progress,
        )  # fmt: skip
    verdict = done.verdict
    warning = (f"used without a passed accuracy gate: {verdict.complaint}",) if verdict and not verdict.passed else ()
    return ConversionReport(
        source=str(source),
        destination=str(destination),
        format=plan.container.name,
        recipe=plan.recipe.name,
        nbytes=done.nbytes,
        seconds=round(time.perf_counter() - started, 3),
        resumed=done.resumed,
        tensors=done.reports,
        notes=plan.notes + warning,
        gate=verdict.as_json() if verdict else None,
    )


def carry_out_plan(
    plan: Plan,
    destination: Path,
    *,
    jobs: int | None = None,
    max_ram: int | None = None,
    measure: Measure | None = None,
    gate_text: Path | str | None = None,
    allow_ungated: bool = False,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    approve: Callable[[], object] = lambda: None,
) -> Outcome:
    """Make what the plan says appear at `destination`, unless `approve`, called when all is written, raises an error."""
    if len(plan.placement.images) > 1 and not plan.container.is_directory and destination.suffix == plan.container.suffix:
        raise OutputError(
            "the output has several files and needs a directory", code="E_SHARDS", file=str(destination),
            hint=f"give a directory, such as {destination.with_suffix('').name}",
        )  # fmt: skip
    if force:  # a file of a split model, or one that a link of it leads to, may lie where the whole does not
        require_apart(destination, [origin.source(file).name for origin in plan.checkpoints for file in _files(origin)])
    workers = check_resources(plan, destination.parent, jobs=jobs, max_ram=max_ram, resume=resume)
    staging = Staging(
        destination,
        [*plan.placement.images, *plan.placement.copies],
        is_directory=plan.container.is_directory or len(plan.placement.images) > 1,
        fingerprint=fingerprint(plan),
        resume=resume,
        force=force,
    )

    def judged(staged: Path) -> Verdict | None:
        approve()
        verdict = judge(plan, staged, measure, text=gate_text, threads=jobs, max_ram=max_ram)
        if verdict is not None and not allow_ungated:
            verdict.require(file=str(destination))
        return verdict

    return fill_and_publish(plan, staging, workers, progress, judged)


def fill_and_publish(
    plan: Plan,
    staging: Staging,
    workers: int,
    progress: Progress | None,
    judged: Callable[[Path], Verdict | None] = lambda _: None,
) -> Outcome:
    """Write what the plan says, have it judged where it is staged, and make it appear; the staging directory is closed."""
    try:
        if staging.published:
            if staging.finished.keys() != {step.target.name for step in plan.steps}:
                raise OutputError(
                    "already exists", code="E_EXISTS", file=str(staging.destination), hint="use --force to replace it"
                )
            outcome = Outcome.of(plan, staging.finished, len(staging.finished))
            staging.discard()
            return outcome._replace(nbytes=plan.nbytes, verdict=_recorded(plan, staging.destination))
        try:
            outcome = _fill(plan, staging, workers, progress)
            for origin in plan.checkpoints:
                _check_source(origin)
            verdict = judged(staging.out if plan.container.is_directory else staging.out / next(iter(plan.placement.images)))
            nbytes = plan.nbytes + (_certify(plan, staging, verdict) if verdict else 0)
        except InterruptedRunError:
            raise
        except FlyweightError:
            staging.discard()  # nothing a second try could build on; an interrupt or I/O error keeps it for --resume
            raise
        staging.publish()
    finally:
        staging.close()
    return outcome._replace(nbytes=nbytes, verdict=verdict)


def fingerprint(plan: Plan) -> str:
    """What must be the same for a resumed run to end in the same bytes."""
    identities = []
    for checkpoint in plan.checkpoints:
        for file in sorted(_files(checkpoint)):
            source = checkpoint.source(file)
            identities.append([file, *(source.identity if isinstance(source, FileSource) else (source.size,))])
    images = {
        name: [image.nbytes, [[o, blake3(c).hexdigest()] for o, c in image.chunks]]
        for name, image in plan.placement.images.items()
    }
    job = {"version": flyweight.__version__, "files": identities, "images": images, "plan": plan.as_json()}
    return blake3(json.dumps(job).encode()).hexdigest()  # ASCII, so that a file may have any name


def check_resources(plan: Plan, folder: Path, *, jobs: int | None, max_ram: int | None, resume: bool) -> int:
    """How many workers fit the memory; ResourceError when not even one does or the disk is too small."""
    wanted = jobs or min(os.cpu_count() or 1, 8)
    one = max((step_memory(step) for step in plan.steps), default=SLAB_BYTES)
    held = _EMBEDDED_COPIES * sum(_held(content) for content in plan.placement.manifest.files.values())
    if not isinstance(plan.container, EmbedsFiles):  # side files of a directory are copied a piece at a time
        held = 0
    memory_limit.require(one + held, max_ram, "one worker")
    workers = min(wanted, (memory_limit.allowed(max_ram) - memory_limit.BASE_RAM - held) // one)
    if not resume and folder.is_dir():
        free, need = shutil.disk_usage(folder).free, plan.nbytes + plan.nbytes // 100
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


def _fill(plan: Plan, staging: Staging, workers: int, progress: Progress | None) -> Outcome:
    """Write everything into staging."""
    copies = {name: Image(extent.nbytes, ()) for name, extent in plan.placement.copies.items()}
    staging.allocate({**plan.placement.images, **copies})
    for name, extent in plan.placement.copies.items():
        plan.checkpoint.check_digest(extent)
        source = plan.checkpoint.source(extent.file)
        for at in range(0, extent.nbytes, SLAB_BYTES):
            staging.write(name, at, source.read(extent.offset + at, min(SLAB_BYTES, extent.nbytes - at)))
    entries = {step.target.name: step.target for step in plan.steps}
    done: dict[str, dict[str, Any]] = {line["tensor"]: line for line in staging.verified(entries)}
    digests: dict[str, str] = {}

    def work(step: Step) -> None:
        name = step.target.name
        report, parts = carry_out(plan.checkpoint, step, staging.write, measured=plan.measured)
        line = staging.record(name, parts, asdict(report))
        if name in plan.placement.digests:  # now, while its pages are in memory
            digests[name] = staging.digest(plan.placement.digests[name])
        done[name] = line
        if progress is not None:
            progress(name, step.target.nbytes, total)

    def work_through(batch: Sequence[Step]) -> None:
        for step in batch:
            work(step)

    resumed, total = len(done), sum(entry.nbytes for entry in entries.values())
    if progress is not None:
        for name in done:
            progress(name, entries[name].nbytes, total)
    share = max(total // (8 * workers), 1)  # what takes longer comes first, lest one worker be alone with it at the end
    todo = sorted((s for s in plan.steps if s.target.name not in done), key=lambda s: -(s.target.nbytes // share))
    with ThreadPoolExecutor(workers, thread_name_prefix="flyweight") as pool:
        futures: list[Future[None]] = [pool.submit(work_through, batch) for batch in _batches(todo)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
    for future in futures:
        if not future.cancelled():
            future.result()
    _finish(plan, staging, digests)
    return Outcome.of(plan, done, resumed)


def _batches(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Small tensors together: handing a million of them over one by one takes longer than copying them."""
    batch, nbytes = list[Step](), 0
    for step in steps:
        batch.append(step)
        nbytes += step.target.nbytes
        if nbytes >= _BATCH_NBYTES or len(batch) >= _BATCH:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _finish(plan: Plan, staging: Staging, digests: dict[str, str]) -> None:
    """Write what the container says of the finished weights. A run killed in the middle of it writes all of it again."""
    if not isinstance(plan.container, Finishes):
        return
    wanted = {
        name: digests[name] if name in digests else staging.digest(extent) for name, extent in plan.placement.digests.items()
    }
    for file, chunks in plan.container.finish(plan.placement, wanted, staging.read).items():
        for offset, chunk in chunks:
            staging.write(file, offset, memoryview(chunk))


def _certify(plan: Plan, staging: Staging, verdict: Verdict) -> int:
    """Record a verdict in the output; by how many bytes it grew."""
    if not isinstance(plan.container, RecordsGate):
        return 0
    files = plan.container.certify(plan.placement, verdict, staging.read)
    for name, content in files.items():
        staging.replace(name, content)
    return sum(len(content) - plan.placement.images[name].nbytes for name, content in files.items())


def _recorded(plan: Plan, destination: Path) -> Verdict | None:
    """The verdict of an output that is published already, where it has a place for one."""
    if not plan.gated:
        return None
    with open_checkpoint(destination) as published:
        return recorded(published)


def _files(checkpoint: Checkpoint) -> set[str]:
    """The files that hold weights."""
    return {extent.file for entry in checkpoint.manifest.entries.values() for extent in entry.extents.values()}


def _check_source(checkpoint: Checkpoint) -> None:
    """A source that changed under the run makes a mixture of two models; refuse it."""
    for file in _files(checkpoint):
        source = checkpoint.source(file)
        if isinstance(source, FileSource) and not source.unchanged():
            raise OutputError("the source changed while it was read", code="E_SOURCE_CHANGED", file=source.name)
