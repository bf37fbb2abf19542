"""Write docs/performance.md from the last benchmark runs: every target, the figure with its spread, and whether it was met."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flyweight.bench.harness import rate

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

BUSY = 4
"""A load average from which on only ratios between contenders mean something."""

INTRODUCTION = """# Performance: targets and measurements

`make bench` measures and writes this page; bench/results has all figures. A figure is a median [minimum–maximum] of repeated
runs, in MB/s unless its unit is given. The same run measures the other tool and the speed of the machine's memory (`read`,
`write`, `copy`; `read2` and `write2` with two threads). llama.cpp is measured if FLYWEIGHT_LLAMA_PYTHON names a Python with
llama-cpp-python.
"""


def rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Verdict, name, figure, share of the machine's limit or unit, ratios to other tools, target."""
    for result in report["results"]:
        if result["target"]:
            beside = ", ".join(f"{ratio:.2f}× {who}" for who, ratio in result["ratios"].items())
            share = f"{result['share_of_limit']:.2f} of {result['limit']}" if "limit" in result else result["unit"]
            figure = rate(result["figures"][result["ours"]]).strip()
            yield result["verdict"], result["name"], figure, share, beside, result["target"]


def main() -> None:
    page = [INTRODUCTION]
    for file in sorted(RESULTS.glob("*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        title = f"{file.stem}: {report['date'][:10]}, {report['processor']}, kernels {report['kernels']}"
        if report.get("load_average", 0) > BUSY:
            title += f", busy machine (load average {report['load_average']:.0f})"
        found = list(rows(report))
        if not found:
            continue
        sys.stdout.write(f"{title}\n")
        page.append(f"## {title}\n\n| | | measured | | compared with | target |\n|---|---|---|---|---|---|")
        for verdict, name, figure, share, beside, target in found:
            sys.stdout.write(f"  {verdict:13}{name:44}{figure:24}{share:16}{beside}  ({target})\n")
            page.append(f"| {verdict} | {name} | {figure} | {share} | {beside} | {target} |")
        page[-1] += "\n"
    PAGE.write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
