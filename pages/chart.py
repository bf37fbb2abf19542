"""Charts of quality: size (x) against what it buys (y), as SVG written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor

__all__ = ["Point", "chart", "curves"]

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
    """Points, those that nothing smaller beats joined and named. `ticks` are the lines across, from the lowest to the highest,
    and what they are called."""
    points = sorted(points, key=lambda point: (point.bits, -point.good))
    frame = _Frame(points, ticks)
    front = _front(points)
    colours = _colours(points)
    lines = [*frame.drawn(axis, bits_axis), f'<path d="{frame.path(front)}" fill="none" stroke="#aaa" stroke-dasharray="4 3"/>']
    for point in points:
        lines.append(frame.dot(point, colours[point.series]))
        if point in front:
            lines.append(f'<text {frame.at(point, -6, -6)} text-anchor="end" fill="#333">{escape(point.name)}</text>')
    for i, (name, colour) in enumerate(colours.items()):
        lines.append(f'<circle cx="{WIDTH - 110}" cy="{HEIGHT - 170 + 18 * i}" r="5" fill="{colour}"/>')
        lines.append(f'<text x="{WIDTH - 98}" y="{HEIGHT - 166 + 18 * i}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def curves(points: Sequence[Point], axis: str, ticks: Sequence[tuple[float, str]], bits_axis: str = "bits per weight") -> str:
    """A curve for each series; the points of the first are named, since those of the others stand above or below them."""
    colours = _colours(points)
    frame = _Frame(points, ticks)
    lines = list(frame.drawn(axis, bits_axis))
    for place, (series, colour) in enumerate(colours.items()):
        own = sorted((point for point in points if point.series == series), key=lambda point: point.bits)
        lines.append(f'<path d="{frame.path(own)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [frame.dot(point, colour) for point in own]
        if not place:
            lines += [f'<text {frame.at(point, 8, 14)} fill="#333">{escape(point.name)}</text>' for point in own]
        y = TOP + 14 + 18 * place
        lines.append(f'<path d="M{LEFT + 14} {y - 4}h24" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{LEFT + 46}" y="{y}" font-size="13">{escape(series)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _colours(points: Sequence[Point]) -> dict[str, str]:
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(point.series for point in points))}


class _Frame:
    """Where on a drawing a point is."""

    def __init__(self, points: Sequence[Point], ticks: Sequence[tuple[float, str]]) -> None:
        bits = [point.bits for point in points]
        self.left, self.right, self.ticks = floor(min(bits)), max(bits) + 0.5, ticks

    def x(self, bits: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (bits - self.left) / (self.right - self.left), 1)

    def y(self, good: float) -> float:
        bottom, top = self.ticks[0][0], self.ticks[-1][0]
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (max(good, bottom) - bottom) / (top - bottom), 1)

    def at(self, point: Point, right: int = 0, down: int = 0) -> str:
        return f'x="{self.x(point.bits) + right}" y="{self.y(point.good) + down}"'

    def dot(self, point: Point, colour: str) -> str:
        where = f'cx="{self.x(point.bits)}" cy="{self.y(point.good)}"'
        return f'<circle {where} r="4" fill="{colour}" fill-opacity="0.75"><title>{escape(point.title)}</title></circle>'

    def path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self.x(point.bits)} {self.y(point.good)}" for point in points)

    def drawn(self, axis: str, bits_axis: str) -> Iterator[str]:
        """The sheet, the lines along and across it, and what they are."""
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
        yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        for bits in range(self.left, int(self.right) + 1):
            yield f'<path d="M{self.x(bits)} {self.y(self.ticks[0][0])}V{TOP}" stroke="#ddd"/>'
            yield f'<text x="{self.x(bits)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{bits}</text>'
        for good, text in self.ticks:
            yield f'<path d="M{LEFT} {self.y(good)}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            yield f'<text x="{LEFT - 8}" y="{self.y(good) + 4}" text-anchor="end">{text}</text>'
        yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(bits_axis)}</text>'
        yield f'<text x="{LEFT - 45}" y="{TOP - 12}">{escape(axis)}</text>'


def _front(points: Sequence[Point]) -> list[Point]:
    """Those that nothing smaller beats; `points` come by size, the best first."""
    front: list[Point] = []
    for point in points:
        if not front or point.good > front[-1].good:
            front.append(point)
    return front
