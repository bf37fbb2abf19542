"""`flyweight delta lora`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from flyweight.cli import Verbs
from flyweight.cli.output import human_bytes, json_option, print_json, print_table
from flyweight.cli.paths import LocalPath
from flyweight.cli.progress import progress_bar

_force = click.option("--force", is_flag=True, help="Replace OUT if it is a model or a delta; never anything else.")
_quiet = click.option("--quiet", "-q", is_flag=True, help="Print no progress.")


@click.group(name="lora", cls=Verbs, short_help="Turn LoRA adapters into deltas, and deltas into LoRA adapters.")
def command() -> None:
    """Turn LoRA adapters of PEFT into .wdelta files, and .wdelta files of low rank into adapters that PEFT loads.

    An adapter needs no import to be used: `flyweight run BASE --delta ADAPTER` takes it as it is.

    \b
    Examples:
      flyweight delta lora import base-hf lora-adapter tuned.wdelta
      flyweight delta lora export tuned.wdelta lora-adapter
    """


@command.command(name="import", short_help="Write a LoRA adapter as a delta.")
@click.argument("base", type=LocalPath())
@click.argument("adapter", type=LocalPath())
@click.argument("out", type=LocalPath())
@_force
@_quiet
@json_option
def import_(base: Path, adapter: Path, out: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Write to OUT the delta that ADAPTER, a directory as PEFT saves it, is on BASE. Its factors are kept bit for bit.

    \b
    Examples:
      flyweight delta lora import base-hf lora-adapter tuned.wdelta
    """
    from flyweight.pipeline.deltas.adapters import import_adapter

    with progress_bar("importing", quiet=quiet) as advance:
        report = import_adapter(base, adapter, out, force=force, progress=advance)
    if as_json:
        print_json(report.as_json())
        return
    ways = Counter(tensor.strategy for tensor in report.tensors)
    rows = [("size", human_bytes(report.nbytes)), ("tensors", ", ".join(f"{count} {name}" for name, count in ways.items()))]
    print_table(f"{report.base} + {adapter}: {report.destination}", ["", ""], rows)


@command.command(name="export", short_help="Write a delta of low rank as a LoRA adapter.")
@click.argument("delta", type=LocalPath())
@click.argument("out", type=LocalPath())
@click.option("--base", type=LocalPath(exists=True), help="The base of the delta.  [default: where the delta says]")
@click.option("--base-name", metavar="NAME", help="What the adapter calls its base: a path, or a name of the Hub.")
@_force
@_quiet
@json_option
def export(
    delta: Path, out: Path, base: Path | None, base_name: str | None, force: bool, quiet: bool, as_json: bool
) -> None:  # fmt: skip
    """Write to OUT, a directory, the LoRA adapter that makes of the base what DELTA makes of it.

    DELTA is one of low rank (`flyweight delta create --strategy lowrank`). Modules that changed otherwise, such as norms, are
    stored whole. What PEFT could not load, such as a new tensor, is refused, with a list of it.

    \b
    Examples:
      flyweight delta lora export tuned.wdelta lora-adapter
      flyweight delta lora export tuned.wdelta lora-adapter --base base-hf --base-name org/model
    """
    from flyweight.pipeline.deltas.adapters import export_adapter

    with progress_bar("exporting", quiet=quiet) as advance:
        report = export_adapter(base, delta, out, base_name=base_name, force=force, progress=advance)
    if as_json:
        print_json(report.as_json())
        return
    ranks = sorted(set(report.ranks.values()))
    rows = [
        ("size", human_bytes(report.nbytes)),
        ("modules", f"{len(report.ranks)} of rank {ranks[0]}" + (f" to {ranks[-1]}" if len(ranks) > 1 else "")),
    ]
    rows += [("stored whole", ", ".join(report.saved))] if report.saved else []
    print_table(f"{report.delta}: {report.destination}", ["", ""], rows)
