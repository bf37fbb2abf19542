"""Timing contenders side by side: interleaved runs, medians with their spread, ratios, and the machine's own limits.

A bench is a list of cases; a case has one amount of bytes and several contenders that do the same work on the same data.
Runs are interleaved, so that a busy machine slows all alike. `machine` measures what memory allows in the same run.

A target is text that a verdict can be given on, several joined by commas:

    3× libggml      our median over that contender's
    0.7 of write    our median over that limit of the machine
    1000 MB/s       our median, in MB/s, MB, ms or tokens/s
    6.2×            our median, where it is itself a ratio
    at most …       any of these, where less is better
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import kernels

Work = Callable[[], object]
_GOAL = re.compile(r"(?P<most>at most )?(?P<bound>\d+(\.\d+)?)(× (?P<peer>.+)| of (?P<limit>\w+)| MB/s| MB| ms| tokens/s|×)")
_VERSIONS = (
    "flyweight", "numpy", "ml_dtypes", "gguf", "pywhispercpp", "zipnn", "coremltools", "astc-encoder-py",
    "deltatensors", "pcodec",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`nbytes` is what rates count (say of what in the bench's title); ratios are ours over each other contender."""

    name: str
    nbytes: int
    contenders: dict[str, Work]
    """The first is ours."""
    limit: str = "write"
    """Which of the machine's limits bounds it: read, write or copy on one thread; read2, write2: on two."""
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


def rate(figures: dict[str, float], digits: int = 0) -> str:
    return f"{figures['median']:7.{digits}f} [{figures['min']:.{digits}f}–{figures['max']:.{digits}f}]"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine(runs: int = 9, megabytes: int = 64) -> dict[str, Any]:
    """What this machine is, and what its memory does on one thread (read2, write2: on two), MB/s."""
    a = np.ones(megabytes * 250_000, np.float32)
    b = np.ones_like(a)
    halves, targets = np.split(a, 2), np.split(b, 2)
    with ThreadPoolExecutor(2) as pool:
        contenders: dict[str, Work] = {
            "read": lambda: a.max(),
            "read2": lambda: list(pool.map(np.max, halves)),
            "write": lambda: b.fill(1.0),
            "write2": lambda: list(pool.map(lambda half: half.fill(1.0), targets)),
            "copy": lambda: np.copyto(b, a),
        }
        limits = measure(contenders, a.nbytes, runs)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "kernels": kernels.active(),
        "python": platform.python_version(),
        "versions": {name: found for name in _VERSIONS if (found := _version(name))},
        "limits": limits,
    }


def verdict(target: str, ours: float, ratios: dict[str, float], limits: dict[str, dict[str, float]]) -> str:
    """met, missed, or not measured (a contender is not here) for the parts of a target together; empty without one."""
    results: list[bool | None] = []
    for part in filter(None, target.split(", ")):
        goal = _GOAL.fullmatch(part)
        if goal is None or (goal["limit"] and goal["limit"] not in limits):
            raise ValueError(f"'{part}' is not a target; write 3× NAME, 0.7 of LIMIT or 1000 MB/s")
        share = ratios.get(goal["peer"]) if goal["peer"] else ours / limits[goal["limit"]]["median"] if goal["limit"] else ours
        bound = float(goal["bound"])
        results.append(None if share is None else share <= bound if goal["most"] else share >= bound)
    if False in results:
        return "missed"
    return "not measured" if None in results else "met" if results else ""


def run(cases: Iterable[Case], limits: dict[str, dict[str, float]], runs: int) -> Iterator[dict[str, Any]]:
    """One result per case, as soon as it is there."""
    for case in cases:
        figures = measure(case.contenders, case.nbytes, runs)
        ours, *others = case.contenders
        ratios = {who: figures[ours]["median"] / figures[who]["median"] for who in others}
        yield {
            "name": case.name,
            "nbytes": case.nbytes,
            "ours": ours,
            "figures": figures,
            "ratios": ratios,
            "limit": case.limit,
            "share_of_limit": figures[ours]["median"] / limits[case.limit]["median"],
            "target": case.target,
            "verdict": verdict(case.target, figures[ours]["median"], ratios, limits),
            **case.notes,
        }


def line(result: dict[str, Any]) -> str:
    """A result for people."""
    figures, ratios = result["figures"], result["ratios"]
    beside = "".join(f"  {ratio:6.2f}× {who} {rate(figures[who])}" for who, ratio in ratios.items())
    goal = f"  ({result['verdict']}: {result['target']})" if result["target"] else ""
    share = f"{result['share_of_limit']:5.2f} of {result['limit']}"
    return f"{result['name']:28}{rate(figures[result['ours']]):26} {share}{beside}{goal}"


def headline(about: dict[str, Any]) -> str:
    limits = ", ".join(f"{name} {rate(figures)}" for name, figures in about["limits"].items())
    return f"{about['processor']}, kernels {about['kernels']}; memory, MB/s on one thread: {limits}"


def main(title: str, cases: Callable[[], Iterable[Case]], runs: int = 9) -> None:
    """The command line of a bench script: run the cases, print lines, write the figures into results/ beside its folder."""
    script = Path(sys.argv[0])
    parser = argparse.ArgumentParser(description=title)
    place = script.parents[1] / "results" / f"{script.stem}.json"
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"where the figures go (default {place}, of a whole run)")
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
    file = options.json or (None if options.only else place)
    if file is not None:
        report = {**about, "title": title, "runs": options.runs, "results": results}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
