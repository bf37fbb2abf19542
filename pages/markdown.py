"""How the pages write figures and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["aligned", "between", "spread", "table", "where"]

BUSY = 4
"""A load average from which on only ratios between contenders mean something."""


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown; a column of integers has separators and stands to the right."""
    listed = list(rows)
    numeric = [bool(listed) and all(isinstance(row[at], int) for row in listed) for at in range(len(heading))]
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in listed]
    rule = "".join("---:|" if number else "---|" for number in numeric)
    return "\n".join([_line(heading), f"|{rule}", *map(_line, cells)])


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def aligned(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """For a terminal: columns of one width; a column of numbers stands to the right."""
    lines = [tuple(heading), *map(tuple, rows)]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    texts = [any(not re.fullmatch(r"[\d.,]*", cell) for cell in column[1:]) for column in columns]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width) for cell, width, text in zip(line, widths, texts, strict=True)
        )
        for line in lines
    )


def spread(figures: Mapping[str, float]) -> str:
    """A median between the least and the greatest."""
    return f"{figures['median']:,.0f} [{figures['min']:,.0f}–{figures['max']:,.0f}]"


def where(report: Mapping[str, Any]) -> str:
    """When and on what a report was measured."""
    load = report.get("load_average", 0)
    busy = f", busy machine (load average {load:.0f})" if load > BUSY else ""
    return f"{report['date'][:10]}, {report['processor']}, kernels {report['kernels']}{busy}"


def between(text: str, name: str, made: str) -> str:
    """A page with what stands between `<!-- name -->` and `<!-- /name -->` replaced."""
    marked = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marked.search(text):
        raise ValueError(f"the page has no place for '{name}'")
    return marked.sub(lambda found: f"{found[1]}{made}\n{found[2]}", text)
