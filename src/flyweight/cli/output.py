"""How verbs print: tables on stdout, progress on stderr, JSON when asked. rich is imported only for tables and bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any

import click

from flyweight.errors import printable
from flyweight.tensor import CodecSpec

__all__ = [
    "codec_label",
    "gate_label",
    "human_bytes",
    "json_option",
    "note",
    "print_json",
    "print_table",
    "progress_bar",
    "size_argument",
]

_OF_ONE_TENSOR = {"id", "base", "escapes", "stored"}
"""Parameters that a codec finds for each tensor."""
_GATE = {"kl": "KL", "perplexity_ratio": "perplexity ratio"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of a table.")


def print_json(document: Any) -> None:
    """Strict JSON: numbers that are not finite become null."""
    sys.stdout.write(json.dumps(_finite(document), ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_table(title: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> None:
    """A table of escaped text; `columns` are (heading, "left" or "right")."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, side in columns:
        table.add_column(heading, justify="right" if side == "right" else "left", overflow="fold", no_wrap=side == "right")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False, soft_wrap=False).print(table)


def codec_label(codec: CodecSpec) -> str:
    """A codec as people compare it: without what is different in every tensor, and what it holds spelt out."""
    params = {key: value for key, value in codec.params.items() if key not in _OF_ONE_TENSOR}
    shown = [f"{key}={value}" for key, value in params.items() if key != "inner"]
    if isinstance(inner := params.get("inner"), str):
        with suppress(ValueError, KeyError, TypeError):
            held = json.loads(inner)
            inner = codec_label(CodecSpec(held["name"], held["params"]))
        shown.insert(0, inner)
    return f"{codec.name}({', '.join(shown)})" if shown else codec.name


def gate_label(gate: Mapping[str, Any]) -> str:
    """The verdict of an accuracy gate in a line."""
    outcome = "passed" if gate["passed"] else "failed"
    if gate["reason"]:
        return f"{outcome}: {gate['reason']}"
    found = (f"{title} {gate[key]['value']:.4g}, at most {gate[key]['high']:.4g}" for key, title in _GATE.items() if gate[key])
    return f"{outcome}: {'; '.join(found)}; {gate['predicted']} tokens beside {gate['source']}"


def note(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(printable(text, 2000), err=True)


def human_bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def size_argument(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Parse `500M`, `4G`, `2GiB` or plain bytes."""
    if value is None:
        return None
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    try:
        number = float(digits)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a size; write 500M or 4G") from None
    if not isfinite(number) or number <= 0:
        raise click.BadParameter(f"{value!r} is not a size; write 500M or 4G")
    return int(number * factor)


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr while it is a terminal; None otherwise. Yields advance(tensor, bytes done, bytes in all)."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def advance(_name: str, count: int, total: int) -> None:
            bar.update(task, advance=count, total=total)

        yield advance
