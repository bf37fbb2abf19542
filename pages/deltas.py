"""docs/deltas.md: fine-tunes as deltas beside other ways to store them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench import recorded
from flyweight.bench.running import digits_of
from pages.markdown import table, where

PARTS = {
    "coding": (
        "Exact coding, in memory",
        """\
Every coder gives back every bit. *ratio* is the size of the fine-tune over the size of its delta. Speeds are MB/s of the
model's bytes, on one core. **MiniLM** is a published pair: all-MiniLM-L6-v2 and a fine-tune of it, shipped as f32, and both
rounded to bf16. **σ** are drawn weights, N(0, 0.02), to which N(0, σ) was added. **RL-like** is a σ so small that 1.2 % of the
weights change after rounding to bf16.

- **zipnn** is ZipNN's delta: XOR, bytes grouped by their place in a word, Huffman or zstd.
- **xor planes + zstd** is the same grouping with zstd at its default level.
- **pcodec** codes differences of the words taken as ordered integers, at its default level.
""",
    ),
    "files": (
        "Files, compared with the public tool",
        """\
*save* goes from two directories to a `.wdelta` file, *load* from base and file to arrays in memory (f32 for the lossy kinds,
as the public tool has it), on one core, files in the page cache. Flyweight also computes and checks the digest of every tensor.
*ratio* and *error* are of MiniLM in bf16, speeds of a drawn model of eight large layers (67 MB, σ = 1e-4). *error* is what is
left of the change: 0 if the fine-tune is rebuilt, 1 if the delta is dropped.
""",
    ),
    "memory": (
        "Memory",
        """\
The highest memory of the process above that of an interpreter with its imports, pages of mapped files included. Flyweight makes
and applies exact deltas, deltatensors int4 ones.
""",
    ),
    "running": (
        "Running base + delta",
        """\
SmolLM2-135M, and the same after 200 steps of training on real text (`python -m bench.models.fine_tune`), both bf16. *ratio* is
that of the exact delta. Base + delta has the same logits as the fine-tune, which the bench checks. Times are from the start of
a process, files in the page cache.
""",
    ),
}


def columns(rows: list[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A line for each figure: what was measured, and every contender's median."""
    whose = list(dict.fromkeys(who for row in rows for who in row["figures"]))
    yield "", "", *whose
    for row in rows:
        case, _, figure = row["name"].rpartition(": ")
        unit = f"{figure}, {row['unit']}" if row["unit"] != "×" else figure
        digits = digits_of(row["unit"])
        yield case, unit, *(f"{row['figures'][who]['median']:,.{digits}f}" if who in row["figures"] else "" for who in whose)


def page(report: Mapping[str, Any]) -> Iterator[str]:
    yield "# Deltas: size, speed and memory compared with other tools\n"
    yield f"{where(report)}, medians of {report['runs']} runs. Written by `make bench`.\n"
    yield "Targets, and whether they were met, are in [performance](performance.md).\n"
    for name, (title, reading) in PARTS.items():
        if rows := [row for row in report["results"] if row["part"] == name]:
            heading, *lines = columns(rows)
            yield f"## {title}\n\n{reading}"
            yield table(heading, lines) + "\n"


def written() -> dict[str, str]:
    return {"docs/deltas.md": "\n".join(page(recorded("deltas")))}
