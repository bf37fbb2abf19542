"""`convert`, at once or in two steps: `plan` decides, `execute` carries out."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flyweight.checkpoint import Checkpoint, open_checkpoint, require_passed
from flyweight.containers import CONTAINERS, container_named
from flyweight.containers.container import Container
from flyweight.containers.options import Extras, NamesTarget
from flyweight.foundation.accuracy_gate import Measure
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, UnknownFormatError, UnsupportedError
from flyweight.foundation.input_statistics import Statistics
from flyweight.foundation.sensitivity import Cost, MeasureCosts
from flyweight.foundation.source_check import CheckAgainstSource, SourceCheck
from flyweight.models import blueprint
from flyweight.pipeline.channel_scales import rescaled
from flyweight.pipeline.conversion_report import ConversionReport
from flyweight.pipeline.execution import Progress, ProgressOf, carry_out_job
from flyweight.pipeline.matrix_inputs import NONE, MatrixInputs, inputs_for, opened
from flyweight.pipeline.output.replacing import require_apart
from flyweight.pipeline.plans.arguments import as_count, as_dtype, as_path, as_size, check_name
from flyweight.pipeline.plans.inputs import SOURCE, STATISTICS, input_at, input_of, require_same
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.plan import Plan
from flyweight.pipeline.plans.planning import job_of_plan, make_job
from flyweight.pipeline.plans.quantization_names import recipe_for
from flyweight.pipeline.plans.recipe import Recipe
from flyweight.pipeline.plans.recipe_file import load_recipe, save_recipe
from flyweight.pipeline.plans.target_size import Size, recipe_of_size, smallest_recipe

_AUTO = "auto"
"""The quantization that is the best form of each weight for a target."""
Notify = Callable[[tuple[str, ...]], None]
_EXTENSION = re.compile(r"\.[a-z][a-z0-9]{1,11}")


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
    digests: bool = False,
    known: MatrixInputs = NONE,
    known_from: Path | None = None,
    size: Size | None = None,
    costs: Callable[[], Mapping[str, Cost]] | None = None,
    recipe_out: Path | None = None,
    checked: bool = False,
) -> Job:
    """What `convert` would do, `known` being what is in the file `known_from`; with `digests` its inputs are known by these, so
    that copies of them will do. With a `size` the types of matrices are chosen for it, by what an error of each `costs`, and
    the recipe goes to `recipe_out`; without costs the smallest types are chosen, if the size can be had. One that will
    be `checked` has a place for what comes of it.

    ResourceError if a codec has to be fitted to a tensor that the memory does not hold, GateError if the checkpoint needs
    a gate itself that it has not passed.
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
        chosen = _by_name(checkpoint, container, quant, extras)
    beside = {name: input_at(path, digests=digests) for name, path in extras.inputs.items()} if extras else {}
    if known_from is not None:
        beside[STATISTICS] = input_at(known_from, digests=digests)
    planned = partial(
        make_job,
        checkpoint,
        container,
        destination.name,
        dtype=as_dtype(dtype),
        shard_bytes=as_size("shard_bytes", shard_bytes),
        max_ram=as_size("max_ram", max_ram),
        draft=_draft(extras),
        files=_files(checkpoint, extras),
        inputs={SOURCE: input_of(checkpoint, digests=digests), **beside},
        made=extras.made if extras else None,
        known=known,
        checked=checked,
    )
    notes: tuple[str, ...] = ()
    if size is not None:
        chosen = smallest_recipe(checkpoint, container, size, lambda recipe: planned(recipe=recipe))
        if costs is not None:
            chosen, notes = recipe_of_size(checkpoint, container, size, known, costs(), lambda recipe: planned(recipe=recipe))
            if recipe_out is not None:
                save_recipe(chosen, recipe_out)
    job = planned(recipe=chosen)
    job = replace(job, notes=notes + job.notes)
    if (wish := _target_wish(extras)) is not None:
        from flyweight.pipeline.plans.target_forms import target_notes  # which knows chips: few conversions ask for one

        job = replace(job, notes=job.notes + target_notes(checkpoint, job.placement.manifest.entries, wish))
    return job


def _target_wish(extras: object) -> NamesTarget | None:
    return extras if isinstance(extras, NamesTarget) and extras.target else None


def _by_name(checkpoint: Checkpoint, container: Container, quant: str | None, extras: Extras | None) -> Recipe:
    wish = _target_wish(extras)
    if quant == _AUTO and wish is None:
        raise UnsupportedError(
            "auto chooses the form of each weight for a chip, and none is named", code="E_QUANT",
            hint="convert to a Core ML package with --target, such as --target M1",
        )  # fmt: skip
    if wish is not None and quant in (None, _AUTO):
        from flyweight.pipeline.plans.target_forms import recipe_for_target

        return recipe_for_target(checkpoint, wish)
    return recipe_for(container, quant or "keep", extras)


def _files(checkpoint: Checkpoint, extras: Extras | None) -> Mapping[str, bytes] | None:
    """Side files to embed, those made of the checkpoint included."""
    if extras is None:
        return None

    def make_package(target: str) -> bytes:
        from flyweight.pipeline.embedded_package import package_for_target

        return package_for_target(checkpoint, target)

    return extras.files(make_package)


def _draft(extras: Extras | None) -> Checkpoint | None:
    return open_checkpoint(extras.draft, checks_digests=True) if extras and extras.draft else None


@contextmanager
def open_conversion(
    source: Path | str,
    destination: Path | str,
    *,
    deltas: Sequence[Path | str] = (),
    in_f32: bool = False,
    statistics: Path | str | Statistics | None = None,
    statistics_of_another_model: bool = False,
    target_size: int | str | None = None,
    target_bpw: float | None = None,
    smallest: bool = False,
    measure_costs: MeasureCosts | None = None,
    progress_of: ProgressOf | None = None,
    awq: bool = False,
    **options: Any,
) -> Iterator[Job]:
    """`plan_conversion` of what is at a path, with deltas on it, and with statistics from a file or as an object. For a size,
    `smallest` plans what takes least instead of what is best. With `awq` channels are scaled before they are quantized."""
    destination = Path(os.path.abspath(as_path("destination", destination)))
    place = Path(os.path.abspath(statistics)) if isinstance(statistics, Path | str) else None
    with open_checkpoint(source, deltas=deltas, checks_digests=True, in_f32=in_f32) as checkpoint, opened(statistics) as found:
        known = inputs_for(checkpoint, found, of_another_model=statistics_of_another_model)
        wish: dict[str, Any] = {"known": known, "known_from": place}
        if (size := _size(target_size, target_bpw)) is not None:
            _check_size(size, known, options, smallest=smallest)

            def costs() -> Mapping[str, Cost]:
                model = blueprint(checkpoint.manifest, checkpoint.read)
                assert measure_costs is not None
                try:
                    return measure_costs(
                        open_checkpoint(source, deltas=deltas, checks_digests=True),
                        lambda name: known.inputs_of(model.tensors[name].name),
                        max_ram=as_size("max_ram", options.get("max_ram")),
                        progress=progress_of("measuring costs") if progress_of else None,
                    )
                except FlyweightError as error:
                    raise error.at(file=checkpoint.bundle.name) from None

            wish |= {"size": size, "costs": None if smallest else costs}
        job = plan_conversion(checkpoint, destination, **wish, **options)
        yield rescaled(job) if awq else job


def _size(nbytes: int | str | None, bits_per_weight: float | None) -> Size | None:
    if nbytes is not None and bits_per_weight is not None:
        raise ValueError("give a size in bytes or in bits a weight, not both")
    if bits_per_weight is not None and not 0 < bits_per_weight <= 64:
        raise ValueError(f"target_bpw must be more than 0 and at most 64 bits a weight, not {bits_per_weight}")
    size = as_size("target_size", nbytes)
    return None if size is None and bits_per_weight is None else Size(size, bits_per_weight)


def _check_size(size: Size, known: MatrixInputs, options: Mapping[str, Any], *, smallest: bool) -> None:
    if options.get("quant") is not None or options.get("recipe") is not None:
        raise ValueError("give a size, a quantization or a recipe: one of them")
    if not known and not smallest:
        raise UnsupportedError(
            f"types for {size} are chosen by what errors cost, of which nothing is known", code="E_STATISTICS",
            hint="`flyweight calibrate MODEL --gram -o STATS`, then `--stats STATS`",
        )  # fmt: skip


def plan(source: Path | str, destination: Path | str, **options: Any) -> Plan:
    """What `convert` would do with these options, as data that `execute` carries out later.

    The source is known by its files' sizes and times of change; with `digests`, for which it is read, also a copy of it is.
    """
    if options.get("awq"):
        raise ValueError("a plan that is carried out later has no place for scales of channels: convert with awq at once")
    if not isinstance(options.get("statistics"), Path | str | None):
        raise ValueError("a plan that is carried out later needs its statistics in a file: give their path")
    with open_conversion(source, destination, **options) as job:
        return job.plan


def convert(
    source: Path | str,
    destination: Path | str,
    *,
    deltas: Sequence[Path | str] = (),
    in_f32: bool = False,
    to: str | None = None,
    quant: str | None = None,
    recipe: Path | str | Recipe | None = None,
    dtype: DType | str | None = None,
    shard_bytes: int | str | None = None,
    jobs: int | None = None,
    max_ram: int | str | None = None,
    extras: Extras | None = None,
    statistics: Path | str | Statistics | None = None,
    statistics_of_another_model: bool = False,
    target_size: int | str | None = None,
    target_bpw: float | None = None,
    measure_costs: MeasureCosts | None = None,
    awq: bool = False,
    recipe_out: Path | None = None,
    measure: Measure | None = None,
    check: CheckAgainstSource | None = None,
    gate_text: Path | str | None = None,
    allow_ungated: bool = False,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    progress_of: ProgressOf | None = None,
    notify: Notify | None = None,
) -> ConversionReport:
    """Convert a checkpoint, with `deltas` on it. Memory does not grow with the model; the destination appears complete or not
    at all.

    `statistics`, a file of `flyweight calibrate` or of llama.cpp's imatrix, tell quantizers what an error costs. They must be
    of this model, in whatever format, unless `statistics_of_another_model`.

    With `target_size` or `target_bpw`, bits a weight of all that is written, the type of every matrix is chosen so that the
    model loses least; it needs statistics.

    With `awq` channels that matter are made larger before they are quantized, and what feeds them smaller: other weights of the
    same function, which any program runs. It needs statistics.

    Sizes are bytes, or text such as "5G". If there is an accuracy gate, the output is measured before it is published, on
    `gate_text` or on text that the source model generates. An output that fails, or that cannot be measured because there is
    no `measure`, is published only with `allow_ungated`, and records that. `check` is asked what the output costs before it is
    published; the report and the metadata say so. `notify` gets the notes of the plan before the work
    begins; the report has them too.
    """
    started = time.perf_counter()
    destination = Path(os.path.abspath(as_path("destination", destination)))
    jobs, max_ram = as_count("jobs", jobs), as_size("max_ram", max_ram)
    if resume and recipe_out is not None and recipe_out.exists():  # the run that was interrupted has written it
        recipe_out = None
    if force:
        given = (each for each in (recipe, statistics) if isinstance(each, Path | str))
        beside = (*given, *(extras.inputs.values() if extras else ()))
        require_apart(destination, [source, *deltas, *(path for path in (*beside, gate_text) if path is not None)])
    with open_conversion(
        source, destination, deltas=deltas, in_f32=in_f32, to=to, quant=quant, recipe=recipe, dtype=dtype,
        shard_bytes=shard_bytes, max_ram=max_ram, extras=extras, allow_ungated=allow_ungated, statistics=statistics,
        statistics_of_another_model=statistics_of_another_model, target_size=target_size, target_bpw=target_bpw,
        measure_costs=measure_costs, progress_of=progress_of, awq=awq, recipe_out=recipe_out,
        checked=check is not None,
    ) as job:  # fmt: skip
        return _carried_out(
            job, source, destination, started, jobs=jobs, max_ram=max_ram, measure=measure, check=check, gate_text=gate_text,
            allow_ungated=allow_ungated, resume=resume, force=force, progress=progress, progress_of=progress_of, notify=notify,
        )  # fmt: skip


def execute(
    plan: Plan,
    destination: Path | str,
    *,
    jobs: int | None = None,
    max_ram: int | str | None = None,
    gate_text: Path | str | None = None,
    allow_ungated: bool = False,
    force: bool = False,
    **run: Any,
) -> ConversionReport:
    """Carry out a plan that was made before: the output is what `convert` would have made then, byte for byte.

    It takes what `convert` does, but for what the plan says already. OutputError E_SOURCE_CHANGED if what it reads is not what
    it was.
    """
    started, source = time.perf_counter(), plan.inputs[SOURCE].path
    destination = Path(os.path.abspath(as_path("destination", destination)))
    run |= {"jobs": as_count("jobs", jobs), "max_ram": as_size("max_ram", max_ram), "allow_ungated": allow_ungated}
    if force:
        require_apart(destination, [*(given.path for given in plan.inputs.values()), *([gate_text] if gate_text else ())])
    with open_plan(plan, destination.name, max_ram=run["max_ram"], allow_ungated=allow_ungated) as job:
        return _carried_out(job, source, destination, started, gate_text=gate_text, force=force, **run)


@contextmanager
def open_plan(plan: Plan, name: str, *, max_ram: int | None = None, allow_ungated: bool = False) -> Iterator[Job]:
    """A plan ready to be carried out under this name, once its inputs are found to be the same."""
    source = plan.inputs[SOURCE]
    gathered = plan.inputs[STATISTICS].path if STATISTICS in plan.inputs else None
    with open_checkpoint(source.path, deltas=source.deltas, checks_digests=True) as checkpoint, opened(gathered) as found:
        require_same(plan.inputs, checkpoint)
        require_passed(checkpoint, allow_ungated=allow_ungated)
        extras = plan.extras
        files = _files(checkpoint, extras)
        known = inputs_for(checkpoint, found, of_another_model=True)  # they are what they were when the plan was made
        yield job_of_plan(plan, checkpoint, name, max_ram=max_ram, draft=_draft(extras), files=files, known=known)


def _carried_out(
    job: Job,
    source: Path | str,
    destination: Path,
    started: float,
    *,
    gate_text: Path | str | None,
    notify: Notify | None = None,
    **run: Any,
) -> ConversionReport:
    if gate_text is not None and job.gate is None:
        raise UnsupportedError(
            "there is a text to measure accuracy on, but no accuracy gate", code="E_RECIPE", hint="use a recipe with a [gate]"
        )
    if notify is not None:
        notify(job.notes)
    done = carry_out_job(job, destination, gate_text=gate_text, **run)
    verdict = done.verdict
    warning = (f"used without a passed accuracy gate: {verdict.complaint}",) if verdict and not verdict.passed else ()
    return ConversionReport(
        source=str(source),
        destination=str(destination),
        format=job.container.name,
        recipe=job.plan.recipe["name"],
        nbytes=done.nbytes,
        seconds=round(time.perf_counter() - started, 3),
        resumed=done.resumed,
        tensors=done.reports,
        notes=job.notes + warning + _checked_notes(done.check),
        gate=verdict.as_json() if verdict else None,
        check=done.check.as_json() if done.check else None,
    )


def _checked_notes(check: SourceCheck | None) -> tuple[str, ...]:
    if check is None or check.same_model:
        return ()
    if check.kl is None:
        return (f"the result was not checked: {check.reason}",)
    return (f"the result is far from its source: KL divergence {check.kl.value:.3g} nats a token",)
