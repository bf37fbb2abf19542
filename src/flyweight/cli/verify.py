"""`flyweight verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flyweight.cli.output import human_bytes, json_option, print_json, print_table, progress_bar


@click.command(name="verify", short_help="Check that a checkpoint is sound.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@json_option
def command(path: Path, strict: bool, as_json: bool) -> None:
    """Read all of PATH: structure, scales and values. Exit 0 if sound, 1 if doubtful, 3 if malformed.

    \b
    Examples:
      flyweight verify model.gguf
      flyweight verify model-hf --strict --json
    """
    from flyweight.pipeline import verify

    with progress_bar("verifying", quiet=False) as advance:
        report = verify(path, strict=strict, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        if report.findings:
            columns = [("level", "left"), ("code", "left"), ("tensor", "left"), ("finding", "left")]
            print_table("", columns, [(f.level, f.code, f.tensor or "", f.message) for f in report.findings])
        verdict = "ok" if report.ok else "FAILED"
        click.echo(f"{verdict}: {report.format}, {report.tensors} tensors, {human_bytes(report.nbytes)} read")
    sys.exit(0 if report.ok else 1)
