"""docs/performance.md: every target of the last benchmark runs, the figure with its spread, and whether it was met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench import RESULTS, recorded
from flyweight.bench.harness import rate
from flyweight.bench.running import digits_of
from pages.markdown import table, where

HEADING = ("", "", "measured", "", "compared with", "target")
INTRODUCTION = """# Performance: targets and measurements

`make bench` measures and writes this page; bench/results has all figures. A figure is a median [minimum–maximum] of repeated
runs, in MB/s unless its unit is given. The same run measures the other tool and the speed of the machine's memory (`read`,
`write`, `copy`; `read2` and `write2` with two threads). llama.cpp is measured if FLYWEIGHT_LLAMA_PYTHON names a Python with
llama-cpp-python.
"""


def rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Verdict, name, figure, share of the machine's limit or unit, ratios to other tools, target."""
    for result in report.get("results", ()):
        if result.get("target"):
            beside = ", ".join(f"{ratio:.2f}× {who}" for who, ratio in result["ratios"].items())
            share = f"{result['share_of_limit']:.2f} of {result['limit']}" if "limit" in result else result["unit"]
            figure = rate(result["figures"][result["ours"]], digits_of(result.get("unit", ""))).strip()
            yield result["verdict"], result["name"], figure, share, beside, result["target"]


def written() -> dict[str, str]:
    page = [INTRODUCTION]
    for name in sorted(file.stem for file in RESULTS.glob("*.json")):
        report = recorded(name)
        if found := list(rows(report)):
            page.append(f"## {name}: {where(report)}\n\n{table(HEADING, found)}\n")
    return {"docs/performance.md": "\n".join(page)}
