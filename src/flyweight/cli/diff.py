"""`flyweight diff`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from flyweight.cli.output import json_option, note, print_json, print_table
from flyweight.cli.paths import LocalPath, delta_option


@click.command(name="diff", short_help="Compare the weights of two models, in any formats.")
@click.argument("a", type=LocalPath())
@click.argument("b", type=LocalPath())
@click.option("--all", "everything", is_flag=True, help="List identical tensors too.")
@delta_option
@json_option
def command(a: Path, b: Path, everything: bool, deltas: tuple[Path, ...], as_json: bool) -> None:
    """Compare models A and B tensor by tensor, in any formats. Exit 0 if every value is equal, 1 if not.

    A delta that says where its base is can be A or B; --delta applies one to A. For an npy-dir, tiers beside the arrays are
    checked too: a tier that does not match its arrays is a difference.

    \b
    Examples:
      flyweight diff model.gguf model-hf
      flyweight diff base finetuned --json
      flyweight diff base finetuned --delta finetuned.wdelta
    """
    from flyweight.tiers import diff

    report = diff(a, b, deltas=deltas)
    if as_json:
        print_json(report.as_json())
    else:
        shown = [t for t in report.tensors if everything or t.status != "identical"]
        columns = ["tensor", "status", ">SNR dB", ">cosine", ">max error", ">differ"]
        if shown:
            rows = [
                (
                    t.name,
                    f"{t.status} {t.detail}".strip(),
                    *(_number(v, f) for v, f in ((t.snr_db, ".2f"), (t.cosine, ".7f"), (t.max_error, ".3g"))),
                    t.differing or "",
                )
                for t in shown
            ]
            print_table("", columns, rows)
        for side, finding in report.findings:
            where = f"{a if side == 'a' else b}{f', tensor {finding.tensor}' if finding.tensor else ''}"
            note(f"{where}: {finding.message} [{finding.code}]")
        counts = Counter(tensor.status for tensor in report.tensors)
        click.echo(f"{'identical' if report.identical else 'different'}: " + ", ".join(f"{n} {s}" for s, n in counts.items()))
    sys.exit(0 if report.identical else 1)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
