"""Timing contenders side by side: interleaved runs, medians with their spread, ratios, and the machine's own limits.

A bench is a list of cases; a case has one amount of bytes and several contenders that do the same work on the same data.
Runs are interleaved, so that a busy machine slows all alike. `machine` measures what memory allows in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import kernels

__all__ = ["Case", "machine", "main", "measure", "rate"]

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """`nbytes` is what rates count (say of what in the bench's title); ratios are ours over each other contender."""

    name: str
    nbytes: int
    contenders: dict[str, Work]
    """The first is ours."""
    limit: str = "write"
    """Which of the machine's limits bounds it: read, write or copy on one thread, or read2, reading on two."""
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
    """What this machine is, and what its memory does on one thread (read2: on two), MB/s."""
    a = np.ones(megabytes * 250_000, np.float32)
    b = np.ones_like(a)
    halves = np.split(a, 2)
    with ThreadPoolExecutor(2) as pool:
        contenders: dict[str, Work] = {
            "read": lambda: a.max(),
            "read2": lambda: list(pool.map(np.max, halves)),
            "write": lambda: b.fill(1.0),
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


def main(title: str, cases: Callable[[], Iterable[Case]], runs: int = 9) -> None:
    """Run the cases, print a table, write JSON when asked."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--runs", type=int, default=runs, help=f"runs per contender (default {runs})")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    report = machine()
    limits = ", ".join(f"{name} {rate(figures)}" for name, figures in report["limits"].items())
    print(f"{title}\n{report['processor']}, kernels {report['kernels']}; memory MB/s (read2: on two threads): {limits}\n")
    report |= {"title": title, "runs": options.runs, "results": []}
    for case in cases():
        if options.only not in case.name:
            continue
        figures = measure(case.contenders, case.nbytes, options.runs)
        ours, *others = case.contenders
        ratios = {who: figures[ours]["median"] / figures[who]["median"] for who in others}
        share = figures[ours]["median"] / report["limits"][case.limit]["median"]
        report["results"].append(
            {"name": case.name, "nbytes": case.nbytes, "figures": figures, "ratios": ratios, "limit": case.limit,
             "share_of_limit": share, "target": case.target, **case.notes}
        )  # fmt: skip
        beside = "".join(f"  {ratios[who]:6.2f}× {who} {rate(figures[who])}" for who in others)
        more = "".join(f"  {key} {value}" for key, value in case.notes.items())
        goal = f"  (target {case.target})" if case.target else ""
        print(f"{case.name:28}{rate(figures[ours]):24} {share:5.2f} of {case.limit}{beside}{more}{goal}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
