"""`flyweight verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flyweight.cli.output import human_bytes, json_option, print_json, print_table, progress_bar
from flyweight.cli.paths import LocalPath


@click.command(name="verify", short_help="Check that a checkpoint is sound.")
@click.argument("path", type=LocalPath())
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@json_option
def command(path: Path, strict: bool, as_json: bool) -> None:
    """Read all of PATH: structure, scales and values. Exit 0 if sound, 1 if doubtful, 3 if malformed.

    Tiers beside the arrays of an npy-dir are made again, without being written, and compared with what is there.
    A SQUIZD file is checked to its last rule: what is broken is listed with its place, all of it.

    \b
    Examples:
      flyweight verify model.gguf
      flyweight verify model-hf --strict --json
      flyweight verify model.squizd --json | jq '.findings[] | [.code, .offset]'
    """
    from flyweight.tiers import verify

    with progress_bar("verifying", quiet=False) as advance:
        report = verify(path, strict=strict, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        if report.findings:
            columns = [("level", "left"), ("code", "left"), ("tensor", "left"), ("offset", "right"), ("finding", "left")]
            rows = [(f.level, f.code, f.tensor or "", "" if f.offset is None else f.offset, f.message) for f in report.findings]
            print_table("", columns, rows)
        verdict = "ok" if report.ok else "FAILED"
        click.echo(f"{verdict}: {report.format}, {report.tensors} tensors, {human_bytes(report.nbytes)} read")
    sys.exit(3 if report.malformed else 0 if report.ok else 1)
