"""The chart of tools/quality.py: bits per weight (x) against signal-to-noise ratio (y), as SVG written by hand."""

from __future__ import annotations

from html import escape
from typing import Any

__all__ = ["chart"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 560, 60, 30, 30, 50
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")
"""One per quantizer, in the order they appear."""


def chart(results: list[dict[str, Any]]) -> str:
    points = [row for row in results if row["snr_db"] is not None]
    right = max(row["bits_per_weight"] for row in points) + 0.5
    top = 5 * (int(max(row["snr_db"] for row in points)) // 5 + 1)

    def x(bits: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (bits - 1) / (right - 1), 1)

    def y(snr: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * snr / top, 1)

    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(row["quantizer"] for row in points))}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for bits in range(1, int(right) + 1):
        lines.append(f'<path d="M{x(bits)} {y(0)}V{TOP}" stroke="#ddd"/>')
        lines.append(f'<text x="{x(bits)}" y="{y(0) + 16}" text-anchor="middle">{bits}</text>')
    for snr in range(0, top + 1, 5):
        lines.append(f'<path d="M{LEFT} {y(snr)}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(snr) + 4}" text-anchor="end">{snr}</text>')
    lines.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">bits per weight</text>')
    lines.append(f'<text x="{LEFT - 45}" y="{TOP - 12}">SNR, dB</text>')
    front = _front(points)
    path = "L".join(f"{x(row['bits_per_weight'])} {y(row['snr_db'])}" for row in front)
    lines.append(f'<path d="M{path}" fill="none" stroke="#aaa" stroke-dasharray="4 3"/>')
    for row in points:
        at = x(row["bits_per_weight"]), y(row["snr_db"])
        title = f"{_name(row)}, {row['quantizer']}: {row['bits_per_weight']} bits, {100 * row['relative_error']:.3f} %"
        lines.append(
            f'<circle cx="{at[0]}" cy="{at[1]}" r="4" fill="{colours[row["quantizer"]]}" fill-opacity="0.75">'
            f"<title>{escape(title)}</title></circle>"
        )
        if row in front:
            lines.append(f'<text x="{at[0] - 6}" y="{at[1] - 6}" text-anchor="end" fill="#333">{escape(_name(row))}</text>')
    for i, (name, colour) in enumerate(colours.items()):
        lines.append(f'<circle cx="{WIDTH - 110}" cy="{HEIGHT - 150 + 18 * i}" r="5" fill="{colour}"/>')
        lines.append(f'<text x="{WIDTH - 98}" y="{HEIGHT - 146 + 18 * i}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _front(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that nothing smaller beats; `points` come by size, then error."""
    front: list[dict[str, Any]] = []
    for row in points:
        if not front or row["snr_db"] > front[-1]["snr_db"]:
            front.append(row)
    return front


def _name(row: dict[str, Any]) -> str:
    params = row["params"]
    bits = str(params.get("bits", ""))
    group = f" g{params['group']}" if "group" in params else ""
    return f"{row['codec']}{' ' + bits if bits else ''}{group}"
