"""`flyweight delta`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from flyweight.cli import Verbs, delta_lora
from flyweight.cli.output import human_bytes, json_option, print_json, print_table, say, size_argument
from flyweight.cli.paths import LocalPath
from flyweight.cli.progress import progress_bar

_force = click.option("--force", is_flag=True, help="Replace OUT if it is a model or a delta; never anything else.")
_quiet = click.option("--quiet", "-q", is_flag=True, help="Print no progress.")
STRATEGIES = ("exact", "auto", "lowrank", "quantized", "int4", "sparse")


@click.group(name="delta", cls=Verbs, short_help="Store a fine-tune as its difference from a base.")
def command() -> None:
    """Store fine-tunes as deltas on a base: a .wdelta file holds what makes the base into the fine-tune, bit for bit.

    A delta is used like a model: `flyweight run BASE --delta FILE`, or `flyweight run FILE` if the base is where it was.
    LoRA adapters of PEFT are accepted wherever a delta is.

    \b
    Examples:
      flyweight delta create base-hf tuned-hf tuned.wdelta
      flyweight delta apply base-hf tuned.wdelta tuned-again
      flyweight run base-hf "Hello" --delta tuned.wdelta
      flyweight delta verify tuned.wdelta --base base-hf
    """


@command.command(name="create", short_help="Write what makes a base into a fine-tune.")
@click.argument("base", type=LocalPath())
@click.argument("tuned", type=LocalPath())
@click.argument("out", type=LocalPath())
@click.option("--strategy", metavar="NAME", default="exact", show_default=True, help=f"One of {', '.join(STRATEGIES)}.")
@click.option(
    "--budget", type=click.FloatRange(0, 1, max_open=True), metavar="SHARE",
    help="For auto and lowrank: how much of a tensor's difference may be lost, as a share of its norm; 0 is exact.",
)  # fmt: skip
@click.option(
    "--sparsity", type=click.FloatRange(0, 1), help="For sparse: the share of changes that are dropped.  [default: 0.9]"
)
@click.option("--outliers", type=click.FloatRange(0, 1), help="For int4: the share of changes kept as f16.  [default: 0.01]")
@click.option("--rank", type=click.IntRange(1), help="For lowrank: the rank.  [default: from --budget, else 16]")
@_force
@click.option("--tensors", is_flag=True, help="Report every tensor.")
@_quiet
@json_option
def create(
    base: Path, tuned: Path, out: Path, strategy: str, budget: float | None, sparsity: float | None, outliers: float | None,
    rank: int | None, force: bool, tensors: bool, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write to OUT what makes BASE into TUNED, models of any format.

    With `exact` every bit of TUNED comes back, and tensors that did not change take nothing. The other strategies keep an
    approximation; those of the public .wdelta tool (sparse, quantized, int4) can be read by it. `auto` takes, for each tensor,
    the smallest that is within --budget. OUT appears complete or not at all.

    \b
    Examples:
      flyweight delta create base-hf tuned-hf tuned.wdelta
      flyweight delta create base-hf tuned-hf tuned.wdelta --strategy auto --budget 0.05
      flyweight delta create base-hf tuned-hf small.wdelta --strategy lowrank --rank 16
      flyweight delta create base.gguf tuned.gguf tuned.wdelta
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads and ours would wait for one another
    from flyweight.pipeline.deltas.creating import create_delta

    options: dict[str, Any] = {"sparsity": sparsity, "outlier_fraction": outliers, "rank": rank}
    chosen = {key: value for key, value in options.items() if value is not None}
    with progress_bar("comparing", quiet=quiet) as advance:
        report = create_delta(base, tuned, out, strategy=strategy, budget=budget, force=force, progress=advance, **chosen)
    if as_json:
        print_json(report.as_json())
        return
    if tensors:
        columns = ["tensor", "stored as", ">bytes", ">delta", ">left of the difference"]
        rows = [(t.name, t.strategy, t.nbytes, t.delta_nbytes, f"{t.error:.3g}") for t in report.tensors]
        print_table("", columns, rows)
    _print_created(report)


@command.command(name="apply", short_help="Write the model that deltas make of a base.")
@click.argument("base", type=LocalPath())
@click.argument("deltas", type=LocalPath(), nargs=-1, required=True)
@click.argument("out", type=LocalPath())
@click.option(
    "--dtype", metavar="TYPE", help="Convert every tensor to this type: f32, f16, bf16.  [default: as in the fine-tune]"
)
@click.option("--to", "target", metavar="FORMAT", help="Format of OUT, see `flyweight formats`.  [default: from its name]")
@click.option("--shard-size", metavar="SIZE", callback=size_argument, help="Split the output into files of about this size.")
@_force
@_quiet
@json_option
def apply(
    base: Path, deltas: tuple[Path, ...], out: Path, dtype: str | None, target: str | None, shard_size: int | None, force: bool,
    quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write to OUT the model that DELTAS, in order, make of BASE. Every tensor is compared with the digest of the fine-tune.

    \b
    Examples:
      flyweight delta apply base-hf tuned.wdelta tuned-hf
      flyweight delta apply base-hf monday.wdelta tuesday.wdelta tuesday-hf
      flyweight delta apply base-hf lora-adapter merged.gguf --to gguf
      flyweight delta apply base-hf small.wdelta tuned-f32 --dtype f32
    """
    from flyweight.pipeline.deltas.applying import apply_delta

    with progress_bar("applying", quiet=quiet) as advance:
        report = apply_delta(base, deltas, out, dtype=dtype, to=target, shard_bytes=shard_size, force=force, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        say(f"{report.destination}: {report.format}, {len(report.tensors)} tensors, {human_bytes(report.nbytes)}")


@command.command(name="inspect", short_help="Show what a delta holds.")
@click.argument("delta", type=LocalPath())
@click.option("--tensors", is_flag=True, help="List every tensor that changes.")
@json_option
def inspect(delta: Path, tensors: bool, as_json: bool) -> None:
    """Show what DELTA was made from, what it makes, and how its tensors are stored. Weights are not read.

    \b
    Examples:
      flyweight delta inspect tuned.wdelta
      flyweight delta inspect lora-adapter --tensors
    """
    from flyweight.pipeline.deltas.delta_log import inspect_delta

    found = inspect_delta(delta)
    if as_json:
        print_json(found.as_json())
        return
    rows = [
        ("result", found.result or "not said"),
        ("base", f"{found.base or 'not said'}{'' if found.base_path is None else f' ({found.base_path})'}"),
        ("strategy", f"{found.strategy}{', bit-exact' if found.exact else ', lossy'}"),
        ("tensors", ", ".join(f"{count} {name}" for name, count in found.strategies.items())),
        ("size", human_bytes(found.nbytes)),
    ]
    rows += [("side files", ", ".join(found.files))] if found.files else []
    rows += [("removed files", ", ".join(found.removed_files))] if found.removed_files else []
    print_table(str(delta), ["", ""], rows)
    if tensors:
        lines = [(t["name"], t["strategy"], "×".join(map(str, t["shape"])) or "scalar", t["nbytes"]) for t in found.tensors]
        print_table("", ["tensor", "stored as", ">shape", ">bytes"], lines)


@command.command(name="verify", short_help="Check a delta for damage, and against its base.")
@click.argument("delta", type=LocalPath())
@click.option(
    "--base", type=LocalPath(exists=True), help="The base to rebuild the result from.  [default: where the delta says]"
)
@json_option
def verify(delta: Path, base: Path | None, as_json: bool) -> None:
    """Read all of DELTA and check its digests; if its base is there, rebuild every tensor and check the result too.

    Exit 0 if ok, 1 if the base is another, 3 if the delta is damaged.

    \b
    Examples:
      flyweight delta verify tuned.wdelta
      flyweight delta verify tuned.wdelta --base base-hf --json
    """
    from flyweight.pipeline.deltas.delta_check import verify_delta

    with progress_bar("verifying", quiet=False) as advance:
        report = verify_delta(delta, base=base, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        for found in report.findings:
            say(f"{found.level}: {f'tensor {found.tensor}: ' if found.tensor else ''}{found.message} [{found.code}]")
        rebuilt = "" if any(found.code == "E_NO_BASE" for found in report.findings) else ", the result rebuilt"
        summary = f"{report.tensors} tensors change, {human_bytes(report.nbytes)} read"
        say(f"ok: {summary}{rebuilt}" if report.ok else f"FAILED: {summary}")
    sys.exit(0 if report.ok else 1 if all(f.code == "E_PARENT" for f in report.findings if f.level == "error") else 3)


@command.command(name="squash", short_help="Make one delta of several.")
@click.argument("places", type=LocalPath(), nargs=-1, required=True, metavar="[BASE] DELTAS... OUT")
@_force
@_quiet
@json_option
def squash(places: tuple[Path, ...], force: bool, quiet: bool, as_json: bool) -> None:
    """Write to OUT one exact delta that does what DELTAS, in order, do. Without BASE, the first delta says where its base is.

    \b
    Examples:
      flyweight delta squash base-hf monday.wdelta tuesday.wdelta week.wdelta
      flyweight delta squash tuesday.wdelta week.wdelta
    """
    from flyweight.pipeline.deltas.applying import squash_deltas
    from flyweight.pipeline.deltas.delta_log import is_delta_at

    *given, out = places
    if not given:
        raise click.UsageError("give at least one delta, and OUT")
    base, deltas = (None, given) if is_delta_at(given[0]) else (given[0], given[1:])
    if not deltas:
        raise click.UsageError("give at least one delta")
    with progress_bar("squashing", quiet=quiet) as advance:
        report = squash_deltas(base, deltas, out, force=force, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        _print_created(report)


@command.command(name="log", short_help="Show the chain of deltas that a delta is the end of.")
@click.argument("delta", type=LocalPath())
@json_option
def log(delta: Path, as_json: bool) -> None:
    """Show DELTA and the deltas that it was made on, the newest first, down to the base.

    \b
    Examples:
      flyweight delta log tuesday.wdelta
    """
    from flyweight.pipeline.deltas.delta_log import delta_log

    chain = list(delta_log(delta))
    if as_json:
        print_json([{key: value for key, value in each.as_json().items() if key != "tensors"} for each in chain])
        return
    rows = [
        (
            each.path,
            each.result or "not said",
            each.base or "not said",
            each.strategy,
            _changed(each.strategies),
            human_bytes(each.nbytes),
        )
        for each in chain
    ]
    print_table("", ["delta", "makes", "of", "strategy", ">tensors changed", ">size"], rows)
    if chain[-1].base_path is None:
        say(f"the base '{chain[-1].base or 'not said'}' is not there")


def _changed(strategies: dict[str, int]) -> int:
    return sum(count for name, count in strategies.items() if name != "unchanged")


def _print_created(report: Any) -> None:
    from collections import Counter

    ways = Counter(tensor.strategy for tensor in report.tensors)
    rows = [
        ("size", f"{human_bytes(report.nbytes)}, {report.ratio:.2f} times smaller than {human_bytes(report.tuned_nbytes)}"),
        ("tensors", ", ".join(f"{count} {name}" for name, count in ways.items())),
        ("left of the difference", "nothing: bit-exact" if report.error == 0 else f"{report.error:.3g} at most"),
        ("seconds", f"{report.seconds:.2f}"),
    ]
    rows += [("removed", ", ".join(report.removed))] if report.removed else []
    rows += [("side files", ", ".join(report.files))] if report.files else []
    rows += [("removed files", ", ".join(report.removed_files))] if report.removed_files else []
    print_table(f"{report.base} → {report.tuned}: {report.destination}", ["", ""], rows)


command.add_command(delta_lora.command)
