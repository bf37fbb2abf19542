"""Timing contenders side by side: interleaved runs, medians with their spread, ratios, and the machine's own limits.

A bench is a list of cases; a case has one amount of bytes and several contenders that do the same work on the same data.
Runs are interleaved, so that a busy machine slows all alike. `machine` measures what memory allows in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import kernels

__all__ = ["Case", "headline", "line", "machine", "main", "measure", "rate", "run"]

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """`nbytes` is what rates count (say of what in the bench's title); ratios are ours over each other contender."""

    name: str
    nbytes: int
    contenders: dict[str, Work]
    """The first is ours."""
    limit: str = "write"
    """Which of the machine's limits bounds it: read, write or copy on one thread, or read2 and write2 on two."""
    target: str = ""
    notes: dict[str, float | str] = field(default_factory=dict)


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(contenders: dict[str, Work], nbytes: int, runs: int) -> dict[str, dict[str, float]]:
    """MB/s of every contender: median, min, max."""
    for work in contenders.values():
        work()
    taken: dict[str, list[float]] = {who: [] for who in contenders}
    for _ in range(runs):
        for who, work in contenders.items():
            taken[who].append(nbytes / seconds(work) / 1e6)
    return {who: {"median": statistics.median(r), "min": min(r), "max": max(r)} for who, r in taken.items()}


def rate(figures: dict[str, float]) -> str:
    return f"{figures['median']:7.0f} [{figures['min']:.0f}–{figures['max']:.0f}]"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def machine(runs: int = 9, megabytes: int = 64) -> dict[str, Any]:
    """What this machine is, and what its memory does on one thread (read2, write2: on two), MB/s."""
    a = np.ones(megabytes * 250_000, np.float32)
    b = np.ones_like(a)
    halves, halves_written = np.split(a, 2), np.split(b, 2)
    with ThreadPoolExecutor(2) as pool:
        contenders: dict[str, Work] = {
            "read": lambda: a.max(),
            "read2": lambda: list(pool.map(np.max, halves)),
            "write": lambda: b.fill(1.0),
            "write2": lambda: list(pool.map(lambda half: half.fill(1.0), halves_written)),
            "copy": lambda: np.copyto(b, a),
        }
        limits = measure(contenders, a.nbytes, runs)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "kernels": kernels.active(),
        "numpy": np.__version__,
        "limits": limits,
    }


def run(cases: Iterable[Case], limits: dict[str, dict[str, float]], runs: int) -> Iterator[dict[str, Any]]:
    """One result per case, as soon as it is there."""
    for case in cases:
        figures = measure(case.contenders, case.nbytes, runs)
        ours, *others = case.contenders
        yield {
            "name": case.name,
            "nbytes": case.nbytes,
            "ours": ours,
            "figures": figures,
            "ratios": {who: figures[ours]["median"] / figures[who]["median"] for who in others},
            "limit": case.limit,
            "share_of_limit": figures[ours]["median"] / limits[case.limit]["median"],
            "target": case.target,
            **case.notes,
        }


def line(result: dict[str, Any]) -> str:
    """A result for people."""
    figures, ratios = result["figures"], result["ratios"]
    beside = "".join(f"  {ratio:6.2f}× {who} {rate(figures[who])}" for who, ratio in ratios.items())
    goal = f"  (target {result['target']})" if result["target"] else ""
    share = f"{result['share_of_limit']:5.2f} of {result['limit']}"
    return f"{result['name']:28}{rate(figures[result['ours']]):26} {share}{beside}{goal}"


def headline(about: dict[str, Any]) -> str:
    limits = ", ".join(f"{name} {rate(figures)}" for name, figures in about["limits"].items())
    return f"{about['processor']}, kernels {about['kernels']}; memory, MB/s on one thread: {limits}"


def main(title: str, cases: Callable[[], Iterable[Case]], runs: int = 9) -> None:
    """The command line of a bench script: run the cases, print lines, write JSON when asked."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--runs", type=int, default=runs, help=f"runs per contender (default {runs})")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    about = machine()
    sys.stdout.write(f"{title}\n{headline(about)}\n\n")
    results = []
    for result in run((case for case in cases() if options.only in case.name), about["limits"], options.runs):
        results.append(result)
        sys.stdout.write(line(result) + "\n")
        sys.stdout.flush()
    if options.json:
        report = {**about, "title": title, "runs": options.runs, "results": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
