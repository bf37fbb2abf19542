"""`flyweight convert`."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from flyweight.cli.format_options import FormatOptions, added_form, extras_of, require_only
from flyweight.cli.output import (
    check_label,
    codec_label,
    gate_label,
    human_bytes,
    json_option,
    note,
    print_json,
    print_table,
    size_argument,
    ungated_option,
)
from flyweight.cli.paths import LocalPath, delta_option
from flyweight.cli.progress import stages
from flyweight.foundation.errors import InterruptedRunError

if TYPE_CHECKING:
    from flyweight.foundation.manifest import Entry
    from flyweight.pipeline import ConversionReport
    from flyweight.pipeline.plans.job import Job

_RUNNING = {"dry_run", "jobs", "max_ram", "resume", "tensors", "quiet", "as_json"}
_IN_PLACE = {"source", *_RUNNING}
_OF_PLAN = {"plan_file", "source", "gate_text", "allow_ungated", "force", *_RUNNING}
"""What goes with a form that is added, and with a plan that was made before."""


@click.command(name="convert", cls=FormatOptions, short_help="Convert or quantize a model.")
@click.argument("source", type=LocalPath(), required=False)
@click.argument("destination", type=LocalPath(), required=False)
@click.option("--to", metavar="FORMAT", help="Target format, see `flyweight formats`. Default: from the destination's name.")
@click.option(
    "--quant",
    metavar="NAME",
    help="Quantize: q4_k_m, q8_0, iq4_xs, 4bit, int4, int4-g32, bf16 … (`flyweight recipes ls`). Default: keep what is stored.",
)
@delta_option
@click.option("--recipe", type=LocalPath(), help="TOML file with rules that choose a codec for each tensor.")
@click.option(
    "--stats",
    "--imatrix",
    type=LocalPath(dir_okay=False),
    help="What the matrices are multiplied with: a file of `flyweight calibrate`, or an imatrix of llama.cpp.",
)
@click.option("--calibrate", is_flag=True, help="Gather statistics first, on text of many kinds that comes with Flyweight.")
@click.option(
    "--calibrate-text", type=LocalPath(exists=True, dir_okay=False), multiple=True,
    help="Gather statistics first, on this UTF-8 text; several times for several.",
)  # fmt: skip
@click.option(
    "--check/--no-check", default=None,
    help="Run the result beside its source before it appears; report what it costs, and have its metadata say so. Default: "
    "when statistics are gathered first.",
)  # fmt: skip
@click.option(
    "--awq", is_flag=True,
    help="Scale channels by what they are multiplied with before quantizing: other weights of the same function, with less "
    "error. Needs statistics.",
)  # fmt: skip
@click.option("--stats-of-another-model", is_flag=True, help="Use statistics although they are of other weights.")
@click.option(
    "--target-size", metavar="SIZE", callback=size_argument,
    help="Choose the type of every matrix so that all that is written takes this many bytes: 900M, 4.5G. Needs statistics.",
)  # fmt: skip
@click.option(
    "--target-bpw", type=click.FloatRange(0, 64, min_open=True), metavar="BITS",
    help="The same by bits for each weight: 4.25.",
)  # fmt: skip
@click.option(
    "--target-ram", metavar="SIZE", callback=size_argument,
    help="The same by the memory that `flyweight run` may take, a context of 4,096 tokens included: 2G.",
)  # fmt: skip
@click.option(
    "--recipe-out", type=LocalPath(), metavar="FILE", help="Write the recipe that was chosen for a size, as --recipe takes it."
)
@click.option(
    "--dtype",
    metavar="TYPE",
    help="Element type of tensors that are not quantized: f32, f16, bf16. Default: one that loses nothing measurable.",
)
@click.option("--shard-size", metavar="SIZE", callback=size_argument, help="Split the output into files of about this size.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--plan-out", metavar="FILE", type=LocalPath(), help="Write the plan to FILE, `-` for stdout, and nothing else.")
@click.option("--plan-digests", is_flag=True, help="With --plan-out: read the source for its digests; a copy of it will do.")
@click.option("--plan", "plan_file", type=LocalPath(), help="Carry out a plan: `convert --plan FILE [DESTINATION]`.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Worker threads. Default: one per core, at most 8.")
@click.option(
    "--max-ram", metavar="SIZE", callback=size_argument, help="Upper bound on memory; fewer workers run if necessary."
)
@click.option(
    "--gate-text", type=LocalPath(exists=True, dir_okay=False),
    help="UTF-8 text for the accuracy gate, if there is one. Default: text that the source model generates.",
)  # fmt: skip
@ungated_option
@click.option("--resume", is_flag=True, help="Continue an interrupted conversion with the same arguments.")
@click.option("--force", is_flag=True, help="Replace a model at the destination; never anything else.")
@click.option("--tensors", is_flag=True, help="Report every tensor.")
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
@json_option
def command(
    source: Path | None,
    destination: Path | None,
    to: str | None,
    quant: str | None,
    deltas: tuple[Path, ...],
    recipe: Path | None,
    stats: Path | None,
    calibrate: bool,
    calibrate_text: tuple[Path, ...],
    check: bool | None,
    awq: bool,
    stats_of_another_model: bool,
    target_size: int | None,
    target_bpw: float | None,
    target_ram: int | None,
    recipe_out: Path | None,
    dtype: str | None,
    shard_size: int | None,
    dry_run: bool,
    plan_out: Path | None,
    plan_digests: bool,
    plan_file: Path | None,
    jobs: int | None,
    max_ram: int | None,
    gate_text: Path | None,
    allow_ungated: bool,
    resume: bool,
    force: bool,
    tensors: bool,
    quiet: bool,
    as_json: bool,
    **of_formats: Any,
) -> None:
    """Convert SOURCE to DESTINATION, in another format or quantization, in bounded memory.

    Tensors are copied byte for byte if the target format can store them as they are; otherwise they are repacked, or decoded
    and encoded again, and the report gives the error. DESTINATION appears complete or not at all; --resume continues an
    interrupted conversion.

    \b
    Examples:
      flyweight convert model.gguf model-hf --dtype bf16
      flyweight convert model-hf model.gguf --quant q8_0
      flyweight convert model-hf model-4bit --to mlx --quant int4
      flyweight convert model.gguf model.safetensors          # copies every quantized byte
      flyweight convert model-hf out.gguf --quant q4_k --stats model.stats
      flyweight convert model-hf out.gguf --quant q4_k_m --calibrate
      flyweight convert model-hf out.gguf --target-bpw 4.25 --stats model.stats --recipe-out chosen.toml
      flyweight convert model-hf out.gguf --target-ram 2G --calibrate
      flyweight convert model-hf model-4bit --to mlx --quant 4bit --stats model.imatrix.gguf --awq
      flyweight convert model-hf out.gguf --quant q4_0 --dry-run --json
      flyweight convert model-hf out.gguf --quant q4_0 --plan-out plan.json && flyweight convert --plan plan.json
      flyweight convert base-hf tuned.gguf --delta tuned.wdelta --quant q4_0
      flyweight convert model-hf model.squizd --quant int4    # weights, config and tokenizer in one file
      flyweight convert --add int4 model-npy                  # add four-bit weights to an 8-bit npy-dir
      flyweight convert model-hf model.squizd --quant int2 --sparse 0.25 --eagle head.safetensors --coreml model.mlpackage
    """
    if quant is not None and recipe is not None:
        raise click.UsageError("--quant and --recipe cannot be used together")
    sized = any(size is not None for size in (target_size, target_bpw, target_ram))
    if sum(choice is not None for choice in (target_size, target_bpw, target_ram, quant, recipe)) > 1:
        raise click.UsageError("--quant, --recipe, --target-size, --target-bpw and --target-ram cannot be used together")
    if recipe_out is not None and not sized:
        raise click.UsageError("--recipe-out goes with --target-size, --target-bpw or --target-ram")
    if stats is not None and (calibrate or calibrate_text):
        raise click.UsageError("--stats and --calibrate cannot be used together")
    if plan_out is not None and (calibrate or calibrate_text):
        raise click.UsageError("a plan needs its statistics in a file: `flyweight calibrate SOURCE -o FILE`, then --stats FILE")
    if plan_out is not None and check:
        raise click.UsageError("a plan says what is written, of which a check is no part: --check goes without --plan-out")
    if sized and dry_run and (calibrate or calibrate_text):
        raise click.UsageError("a dry run gathers no statistics, which a size needs: `flyweight calibrate` first, then --stats")
    if plan_out is not None and awq:
        raise click.UsageError("a plan has no place for scales of channels: --awq goes without --plan-out")
    if awq and stats is None and not (calibrate or calibrate_text):
        raise click.UsageError("--awq needs statistics: --stats FILE or --calibrate")
    if calibrate or calibrate_text:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flyweight.api import convert, execute
    from flyweight.measuring import measure_costs, size_to_run_in
    from flyweight.pipeline.adding import add_form, open_addition
    from flyweight.pipeline.conversion import conflict_of, open_conversion, open_plan, target_container
    from flyweight.pipeline.plans.plan import Plan

    told: list[str] = []

    def tell(notes: tuple[str, ...]) -> None:
        """Say it now; it may be a reason to stop."""
        told.extend(notes)
        _notes(notes, quiet)

    ctx, label = click.get_current_context(), "converting"
    judged: dict[str, Any] = {"max_ram": max_ram, "allow_ungated": allow_ungated}
    replacing: dict[str, Any] = {"gate_text": gate_text, "force": force}
    planned: Callable[..., AbstractContextManager[Job]]
    has_stages = False
    carry_out: Callable[..., ConversionReport]
    if plan_file is not None:
        require_only(ctx, "--plan", _OF_PLAN)
        plan = Plan.load(plan_file)
        destination = source or plan_file.parent / plan.name  # the one argument there is
        title = f"{plan_file} → {destination}"
        planned = partial(open_plan, plan, destination.name, **judged)
        carry_out = partial(execute, plan, destination, notify=tell, **judged, **replacing)
    elif source is None:
        raise click.MissingParameter(param_type="argument", param_hint="SOURCE")
    elif (added := added_form(ctx, _IN_PLACE)) is not None:
        title, label = f"{source} + {added}", "adding"
        planned = partial(open_addition, source, added)
        carry_out = partial(add_form, source, added, max_ram=max_ram)
    elif destination is None:
        raise click.MissingParameter(param_type="argument", param_hint="DESTINATION")
    else:
        extras = extras_of(of_formats)
        if conflict := conflict_of(target_container(destination, to), quant, recipe is not None, extras):
            raise click.UsageError(conflict)
        wish: dict[str, Any] = {"deltas": deltas, "to": to, "quant": quant, "recipe": recipe, "dtype": dtype}
        wish |= {"shard_bytes": shard_size, "extras": extras, "statistics": stats, "awq": awq}
        wish |= {"statistics_of_another_model": stats_of_another_model, "recipe_out": recipe_out}
        if sized:
            if target_ram is not None:
                target_size = size_to_run_in(target_ram, source, deltas=deltas)
            wish |= {"target_size": target_size, "target_bpw": target_bpw, "measure_costs": measure_costs}
        title, has_stages = f"{source} → {destination}", True
        chosen: bool | tuple[Path, ...] = calibrate_text or calibrate
        checked = bool(chosen) and not deltas if check is None else check
        known = {**wish, "awq": awq and stats is not None}
        planned = partial(open_conversion, source, destination, digests=plan_digests, checked=checked, **known, **judged)
        carry_out = partial(
            convert, source, destination, notify=tell, **wish, **judged, **replacing, calibrate=chosen, check=check
        )
    if plan_digests and plan_out is None:
        raise click.UsageError("--plan-digests goes with --plan-out")
    if dry_run or plan_out is not None:
        with ExitStack() as held:
            with stages(quiet=quiet) as shown:
                job = held.enter_context(planned(**({"progress_of": shown.steps} if has_stages else {})))
            if plan_out is None:
                _print_plan(job, title, quiet=quiet, as_json=as_json)
            elif plan_out == Path("-"):
                click.echo(job.plan.to_json(Path.cwd()), nl=False)
            else:
                job.plan.save(plan_out)
                _notes(job.notes, quiet)
        return
    signal.signal(signal.SIGTERM, _terminated)
    with stages(quiet=quiet) as shown:
        watched: dict[str, Any] = {"progress": shown.nbytes(label)} | ({"progress_of": shown.steps} if has_stages else {})
        report = carry_out(jobs=jobs, resume=resume, **watched)
    _notes(tuple(text for text in report.notes if text not in told), quiet)
    _print_report(report, title, tensors=tensors, as_json=as_json)


def _print_plan(job: Job, title: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(job.as_json())
        _notes(job.notes, quiet)
        return
    columns = ["tensor", "action", "from", "to", ">bytes", ">bits/w"]
    rows = [
        (step.name, step.action, stored_as(job.source(step)), stored_as(t), t.nbytes, f"{t.bits_per_weight:.2f}")
        for step in job.plan.steps
        for t in (job.target(step),)
    ]
    print_table(f"{title} ({job.container.name}, {human_bytes(job.nbytes)})", columns, rows)
    _notes(job.notes, quiet)


def _print_report(report: ConversionReport, title: str, *, tensors: bool, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    if tensors:
        columns = ["tensor", "action", "codec", ">bits/w", ">rel. error", ">max error"]
        lines = [
            (t.name, t.action, t.codec, f"{t.bits_per_weight:.2f}", f"{t.relative_error:.3g}", f"{t.max_error:.3g}")
            for t in report.tensors
        ]
        print_table("", columns, lines)
    actions = Counter(tensor.action for tensor in report.tensors)
    summary = [
        ("format", report.format),
        ("size", human_bytes(report.nbytes)),
        ("bits/weight", f"{report.bits_per_weight:.3f}"),
        ("tensors", ", ".join(f"{count} {action}" for action, count in actions.items())),
        ("rel. error", f"{report.relative_error:.3g}"),
        ("max error", f"{report.max_error:.3g}"),
        ("seconds", f"{report.seconds:.2f}"),
    ]
    summary += [("gate", gate_label(report.gate))] if report.gate else []
    summary += [("check", check_label(report.check))] if report.check else []
    print_table(title, ["", ""], summary)


def stored_as(entry: Entry | None) -> str:
    """The codec, or for plain numbers their element type."""
    from flyweight.foundation.tensor import RAW  # which help does without

    if entry is None:
        return ""
    return entry.spec.dtype.label if entry.codec == RAW else codec_label(entry.codec)


def _notes(notes: tuple[str, ...], quiet: bool) -> None:
    if not quiet:
        for text in notes:
            note(f"note: {text}")


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise InterruptedRunError("terminated", hint="run the same command with --resume to continue")
