"""`flyweight verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flyweight.cli.output import human_bytes, json_option, print_json, print_table
from flyweight.cli.paths import LocalPath, delta_option
from flyweight.cli.progress import progress_bar


@click.command(name="verify", short_help="Check a model for damage and errors.")
@click.argument("path", type=LocalPath())
@click.option("--strict", is_flag=True, help="Exit 1 on warnings too.")
@delta_option
@json_option
def command(path: Path, strict: bool, deltas: tuple[Path, ...], as_json: bool) -> None:
    """Read all of PATH and check its structure, scales, values and digests. Exit 0 if ok, 1 if not, 3 if malformed.

    For an npy-dir, tiers beside the arrays are built again in memory and compared. For a SQUIZD file, every broken rule
    is listed with its byte offset.

    \b
    Examples:
      flyweight verify model.gguf
      flyweight verify model-hf --strict --json
      flyweight verify model.squizd --json | jq '.findings[] | [.code, .offset]'
    """
    from flyweight.tiers import verify

    with progress_bar("verifying", quiet=False) as advance:
        report = verify(path, deltas=deltas, strict=strict, progress=advance)
    if as_json:
        print_json(report.as_json())
    else:
        if report.findings:
            columns = ["level", "code", "tensor", ">offset", "finding"]
            rows = [(f.level, f.code, f.tensor or "", "" if f.offset is None else f.offset, f.message) for f in report.findings]
            print_table("", columns, rows)
        verdict = "ok" if report.ok else "FAILED"
        click.echo(f"{verdict}: {report.format}, {report.tensors} tensors, {human_bytes(report.nbytes)} read")
    sys.exit(3 if report.malformed else 0 if report.ok else 1)
