"""How commands print: tables on stdout, notes on stderr, JSON with `--json`. rich is imported only for tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from flyweight.foundation.errors import as_utf8, printable
from flyweight.foundation.limits import human_bytes as human_bytes
from flyweight.foundation.limits import parse_size

if TYPE_CHECKING:
    from flyweight.foundation.tensor import CodecSpec

_AT_ONCE = 4096
_GATE = {"kl": "KL", "perplexity_ratio": "perplexity ratio"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
ungated_option = click.option(
    "--allow-ungated", is_flag=True, help="Use three-bit weights that have not passed their accuracy gate."
)


def print_json(document: Any) -> None:
    """`json_text` of a document; what is long is written piece by piece."""
    for piece in _json_pieces(document):
        sys.stdout.write(piece)
    sys.stdout.write("\n")


def _json_pieces(value: Any) -> Iterator[str]:
    """The text of a document. Values that are iterators are lists; like arrays they are never in memory whole."""
    if isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield f"{', ' if number else ''}{json_text(str(key))}: "
            yield from _json_pieces(item)
        yield "}"
    elif isinstance(value, Iterator) or (isinstance(value, Sequence) and not isinstance(value, str | list | tuple)):
        yield "["
        items, separator = iter(value), ""
        while batch := list(islice(items, _AT_ONCE)):
            yield separator + json_text(batch)[1:-1]
            separator = ", "
        yield "]"
    else:
        yield json_text(value)


def json_text(document: Any) -> str:
    """Strict JSON that is safe to show: numbers that are not finite become null, what a terminal might obey is escaped.

    A byte of a file name that is no UTF-8 becomes the text `\\xff`, as in tables: JSON has no other way to hold it that every
    reader takes.
    """
    return _UNUSUAL.sub(_escaped, json.dumps(_plain(document), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return as_utf8(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {as_utf8(key) if isinstance(key, str) else key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return value


_UNUSUAL = re.compile("[^ -~\n]+")


def _escaped(found: re.Match[str]) -> str:
    """JSON's own escapes for what is not printable or not in the encoding of stdout; they can only stand within strings."""
    text = found.group()
    if text.isprintable() and (sys.stdout.encoding or "utf-8").lower() == "utf-8":
        return text
    return json.dumps(text)[1:-1]


def print_table(title: str, headings: Iterable[str], rows: Iterable[Sequence[object]]) -> None:
    """A table of escaped text; a column whose heading begins with ">" is set to the right, as numbers are."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading.startswith(">")
        table.add_column(heading.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False, soft_wrap=False)
    if title:  # not the table's own, which would be wrapped to the width of the table
        console.print(Text(printable(title, 2000), style="italic"))
    console.print(table)


def codec_label(codec: CodecSpec) -> str:
    """A codec as people compare it: without what is different in every tensor."""
    from flyweight.codecs import without_per_tensor  # only verbs that show tensors need it

    return str(without_per_tensor(codec))


def gate_label(gate: Mapping[str, Any]) -> str:
    """The verdict of an accuracy gate in a line."""
    outcome = "passed" if gate["passed"] else "failed"
    if gate["reason"]:
        return f"{outcome}: {gate['reason']}"
    found = (f"{title} {gate[key]['value']:.4g}, at most {gate[key]['high']:.4g}" for key, title in _GATE.items() if gate[key])
    return f"{outcome}: {'; '.join(found)}; {gate['predicted']} tokens, compared with {gate['source']}"


def check_label(check: Mapping[str, Any]) -> str:
    """What a result costs beside its source, in a line."""
    if check["reason"]:
        return f"none: {check['reason']}"
    kl, theirs, ours = (check[key] for key in ("kl", "source_perplexity", "perplexity"))
    reach = (kl["high"] - kl["low"]) / 2
    figures = f"KL {kl['value']:.4g} ± {reach:.2g}, perplexity {ours['value']:.2f}, was {theirs['value']:.2f}"
    return f"{figures}; {check['predicted']} tokens, compared with {check['source']}"


def say(text: str) -> None:
    """A line of the answer, on stdout."""
    click.echo(printable(text, 4000))


def note(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(printable(text, 2000), err=True)


def size_argument(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """An option that takes `500M`, `4G`, `2GiB` or plain bytes."""
    try:
        return None if value is None else parse_size(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a size; write 500M or 4G") from None
