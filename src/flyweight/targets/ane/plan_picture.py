"""A picture of a plan: for every line the bytes that would cross the stream, beside those of dense fp16. SVG, or one HTML page.

Nothing in it is loaded from elsewhere, and names from the model are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from flyweight.foundation.errors import printable
from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.plan_lines import Line, findings, plan_lines
from flyweight.targets.ane.weight_plan import Plan

COLOURS = {
    Outcome.STREAMS: "#2a9d5c",
    Outcome.FOLDS: "#d1495b",
    Outcome.DENSE: "#8d99ae",
    Outcome.NO_FORM: "#b8a1c9",
    Outcome.REFUSED: "#6d2e46",
    Outcome.CANNOT_TELL: "#edae49",
    Outcome.NO_KERNEL: "#ccd0d5",
}
_NAMES, _BARS, _FIGURES, _ROW, _TOP = 360, 460, 210, 18, 64
_FONT = 'font-family="sans-serif" font-size="11"'
_STYLE = "body{font-family:sans-serif;margin:1.5em}td,th{text-align:left;padding:.2em .8em .2em 0}"
_WIDTH = _NAMES + _BARS + _FIGURES


def svg(plan: Plan, title: str, *, each: bool = False) -> str:
    """A bar for each line. Its outline is the weight in fp16, what is filled crosses the stream."""
    lines = plan_lines(plan, each=each)
    height = _TOP + _ROW * len(lines) + 12
    widest = max((line.dense for line in lines), default=1)
    head = f"{title}: {plan.engine}, {_bytes(plan.moved)} of {_bytes(plan.dense)} cross the stream"
    body = [_row(line, _TOP + _ROW * number, _BARS / widest) for number, line in enumerate(lines)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT} role="img">',
            f"<title>{_text(head)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            f'<text x="8" y="20" font-size="14">{_text(head)}</text>',
            *_legend(plan),
            *body,
            "</svg>",
            "",
        ]
    )


def _legend(plan: Plan) -> list[str]:
    drawn, x = [], 8
    for outcome in plan.totals:
        drawn.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{COLOURS[outcome]}"/>')
        drawn.append(f'<text x="{x + 16}" y="42">{escape(outcome.value)}</text>')
        x += 40 + 7 * len(outcome.value)
    return drawn


def _row(line: Line, y: int, scale: float) -> str:
    decision, moved = line.first.decision, line.moved
    shown = moved if moved is not None else line.compressed or 0
    many = f" ×{line.count}" if line.count > 1 else ""
    figures = f"{_bytes(shown)} of {_bytes(line.dense)}" if moved is not None else decision.outcome.value
    told = f"{line.name}: {decision.outcome.value}. {decision.reason}"
    look = f'fill="{COLOURS[decision.outcome]}" fill-opacity="{1 if moved is not None else 0.35}"'
    return (
        f"<g><title>{_text(told, 400)}</title>"
        f'<text x="{_NAMES - 8}" y="{y + 12}" text-anchor="end">{_text(line.name, 52)}{many}</text>'
        f'<rect x="{_NAMES}" y="{y + 2}" width="{line.dense * scale:.1f}" height="{_ROW - 6}" fill="none" stroke="#ccc"/>'
        f'<rect x="{_NAMES}" y="{y + 2}" width="{shown * scale:.1f}" height="{_ROW - 6}" {look}/>'
        f'<text x="{_NAMES + _BARS + 8}" y="{y + 12}" fill="#333">{escape(figures)}</text></g>'
    )


def html(plan: Plan, title: str, *, each: bool = False) -> str:
    """The picture with the reasons below it, as one page."""
    rows = [
        (found.outcome.value, str(found.tensors), found.gate.about if found.gate else "", found.reason, found.change)
        for found in findings(plan)
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{_text(title)}: {_text(str(plan.engine))}</title>",
            f"<style>{_STYLE}</style></head><body>",
            svg(plan, title, each=each),
            _table(("", "weights", "gate", "reason", "what to change"), rows),
            "</body></html>",
            "",
        ]
    )


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = ["".join(f"<th>{escape(cell)}</th>" for cell in heading)]
    cells += ["".join(f"<td>{_text(cell, 400)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def _text(text: str, limit: int = 200) -> str:
    return escape(printable(text, limit))


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
