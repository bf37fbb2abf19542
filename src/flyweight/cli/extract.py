"""`flyweight extract`."""

from __future__ import annotations

from pathlib import Path

import click

from flyweight.cli.output import human_bytes, json_option, print_json, print_table, say
from flyweight.cli.paths import LocalPath
from flyweight.cli.progress import progress_bar


@click.command(name="extract", short_help="Extract files, a draft head or single tensors from a model.")
@click.argument("model", type=LocalPath())
@click.argument("part", required=False)
@click.argument("out", required=False, type=LocalPath())
@click.option("--list", "listing", is_flag=True, help="List what can be extracted.")
@click.option("--zip", "archived", is_flag=True, help="Write the Core ML package as a zip archive, as stored.")
@click.option("--force", is_flag=True, help="Replace OUT if it is a model or an earlier result of the same command.")
@click.option("--quiet", "-q", is_flag=True, help="Print no progress.")
@json_option
def command(
    model: Path, part: str | None, out: Path | None, listing: bool, archived: bool, force: bool, quiet: bool, as_json: bool
) -> None:
    """Extract PART of MODEL to OUT. PART is `draft`, `coreml`, `files`, or the name of a side file or a tensor.

    A draft head becomes a safetensors file with its original tensor names; a Core ML package and side files become directories.
    OUT appears complete or not at all, and nothing is written outside it.

    \b
    Examples:
      flyweight extract model.squizd --list
      flyweight extract model.squizd draft head.safetensors
      flyweight extract model.squizd coreml model.mlpackage
      flyweight extract model.squizd coreml model.mlpackage.zip --zip
      flyweight extract model.squizd files settings
      flyweight extract model.squizd tokenizer.json tokenizer.json
    """
    from flyweight.containers import mlpackage
    from flyweight.pipeline import extract, list_parts

    if listing:
        if part is not None:
            raise click.UsageError("--list and PART cannot be used together")
        parts = list_parts(model)
        if as_json:
            print_json({"source": str(model), "parts": [item.as_json() for item in parts]})
        else:
            columns = ["part", "", ">items", ">size"]
            print_table(str(model), columns, [(p.name, p.kind, p.count, human_bytes(p.nbytes)) for p in parts])
        return
    if part is None or out is None:
        raise click.UsageError("give PART and OUT, or --list")
    if archived and part != mlpackage.PART:
        raise click.UsageError("--zip is only for the part `coreml`")
    with progress_bar("extracting", quiet=quiet) as advance:
        report = extract(model, part, out, archived=archived, force=force, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        say(f"{report.destination}: {len(report.items)} items, {human_bytes(report.nbytes)}")
