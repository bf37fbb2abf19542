"""docs/performance.md: every target of the last runs, what was reached, its spread, the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench import RESULTS, recorded
from flyweight.bench.harness import rate
from pages.markdown import table, where

HEADING = ("", "", "reached", "", "beside", "target")
INTRODUCTION = """# Performance: every target, and what was reached

`make bench` measures and writes this page; the figures with their spread are in bench/results. Medians [least–greatest] of
repeated runs, MB/s unless a row says otherwise, each beside its peer and the machine's own memory in the same run.
llama.cpp is measured where FLYWEIGHT_LLAMA_PYTHON names a Python with llama-cpp-python.
"""


def rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Verdict, name, figure, share of the machine's limit or unit, beside whom, target."""
    for result in report.get("results", ()):
        if result.get("target"):
            beside = ", ".join(f"{ratio:.2f}× {who}" for who, ratio in result["ratios"].items())
            share = f"{result['share_of_limit']:.2f} of {result['limit']}" if "limit" in result else result["unit"]
            figure = rate(result["figures"][result["ours"]]).strip()
            yield result["verdict"], result["name"], figure, share, beside, result["target"]


def written() -> dict[str, str]:
    page = [INTRODUCTION]
    for name in sorted(file.stem for file in RESULTS.glob("*.json")):
        report = recorded(name)
        if found := list(rows(report)):
            page.append(f"## {name}: {where(report)}\n\n{table(HEADING, found)}\n")
    return {"docs/performance.md": "\n".join(page)}
