"""The charts of docs/quality.md: size (x) against what it buys (y), as SVG written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor

__all__ = ["Point", "chart"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 560, 60, 30, 30, 50
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")
"""One per series, in the order they appear."""


@dataclass(frozen=True)
class Point:
    """Bits per weight; what they buy, more being better; its series; its name, and a title for those who point at it."""

    bits: float
    good: float
    series: str
    name: str
    title: str


def chart(points: Sequence[Point], axis: str, ticks: Sequence[tuple[float, str]], bits_axis: str = "bits per weight") -> str:
    """`ticks` are the lines across, from the lowest to the highest, and what they are called."""
    points = sorted(points, key=lambda point: (point.bits, -point.good))
    left, right = floor(points[0].bits), points[-1].bits + 0.5
    bottom, top = ticks[0][0], ticks[-1][0]

    def x(bits: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (bits - left) / (right - left), 1)

    def y(good: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (max(good, bottom) - bottom) / (top - bottom), 1)

    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(point.series for point in points))}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for bits in range(left, int(right) + 1):
        lines.append(f'<path d="M{x(bits)} {y(bottom)}V{TOP}" stroke="#ddd"/>')
        lines.append(f'<text x="{x(bits)}" y="{y(bottom) + 16}" text-anchor="middle">{bits}</text>')
    for good, text in ticks:
        lines.append(f'<path d="M{LEFT} {y(good)}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(good) + 4}" text-anchor="end">{text}</text>')
    lines.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(bits_axis)}</text>')
    lines.append(f'<text x="{LEFT - 45}" y="{TOP - 12}">{escape(axis)}</text>')
    front = _front(points)
    path = "L".join(f"{x(point.bits)} {y(point.good)}" for point in front)
    lines.append(f'<path d="M{path}" fill="none" stroke="#aaa" stroke-dasharray="4 3"/>')
    for point in points:
        at = x(point.bits), y(point.good)
        lines.append(
            f'<circle cx="{at[0]}" cy="{at[1]}" r="4" fill="{colours[point.series]}" fill-opacity="0.75">'
            f"<title>{escape(point.title)}</title></circle>"
        )
        if point in front:
            lines.append(f'<text x="{at[0] - 6}" y="{at[1] - 6}" text-anchor="end" fill="#333">{escape(point.name)}</text>')
    for i, (name, colour) in enumerate(colours.items()):
        lines.append(f'<circle cx="{WIDTH - 110}" cy="{HEIGHT - 170 + 18 * i}" r="5" fill="{colour}"/>')
        lines.append(f'<text x="{WIDTH - 98}" y="{HEIGHT - 166 + 18 * i}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _front(points: Sequence[Point]) -> list[Point]:
    """Those that nothing smaller beats; `points` come by size, the best first."""
    front: list[Point] = []
    for point in points:
        if not front or point.good > front[-1].good:
            front.append(point)
    return front
