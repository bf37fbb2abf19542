"""Every target of the last runs in one table, printed and as docs/performance.md: what was reached, its spread, the verdict."""

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

INTRODUCTION = """# Performance: every target, and what was reached

`make bench` measures and writes this page; the figures with their spread are in bench/results. Medians [least–greatest] of
repeated runs, MB/s unless a row says otherwise, each beside its peer and the machine's own memory in the same run.
llama.cpp is measured where FLYWEIGHT_LLAMA_PYTHON names a Python with llama-cpp-python.
"""


def rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Verdict, name, figure, share of the machine's limit or unit, beside whom, target."""
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
        page.append(f"## {title}\n\n| | | reached | | beside | target |\n|---|---|---|---|---|---|")
        for verdict, name, figure, share, beside, target in found:
            sys.stdout.write(f"  {verdict:13}{name:44}{figure:24}{share:16}{beside}  ({target})\n")
            page.append(f"| {verdict} | {name} | {figure} | {share} | {beside} | {target} |")
        page[-1] += "\n"
    PAGE.write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
