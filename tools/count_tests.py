"""Count the tests and write the figures into docs/testing.md.

    python tools/count_tests.py              collect the tests, count cases, rewrite the tables
    python tools/count_tests.py --points     run tests/crash besides and count the points at which a run was stopped (minutes)
    python tools/count_tests.py --page       rewrite the tables from what was counted before

docs/testing.json has the counts; tests/fuzz/executions.json has the executions of the fuzzers, which `--record` adds to.
A table is between `<!-- name -->` and `<!-- /name -->`; everything else on the page is written by hand and has no figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS, PAGE, COUNTED = ROOT / "tests", ROOT / "docs/testing.md", ROOT / "docs/testing.json"
FOLDERS = {
    "architecture": "the structure of the source tree",
    "unit": "what each part does, with examples",
    "laws": "what must hold for every codec and every container",
    "native": "kernels equal their NumPy definition on every instruction set",
    "fuzz": "hostile files, mutations, the corpus",
    "crash": "kills, full disks, I/O errors, signals",
    "conformance": "reading and writing, against the tools that own the formats; not part of `make test`",
}
POINTS_VARIABLE = "FLYWEIGHT_COUNT_POINTS"

Figures = dict[str, Any]


def collected(folder: str) -> int:
    """Tests of a folder, each parameter of a test counted."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", str(TESTS / folder)]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    return sum("::" in line for line in lines)


def conformance_functions() -> int:
    """Functions, since the outside tools that decide their parameters need not be installed."""
    return sum(len(re.findall(r"^def test_", path.read_text(), re.MULTILINE)) for path in (TESTS / "conformance").glob("*.py"))


def lines_of(*patterns: str) -> int:
    return sum(len(path.read_text().splitlines()) for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())


def structure() -> Figures:
    """What is counted by importing it, in a second or two."""
    sys.path.insert(0, str(TESTS))
    from flyweight import kernels
    from flyweight.codecs import CODECS
    from flyweight.containers import CONTAINERS
    from fuzz.targets import TARGETS
    from fuzz.verbs import VERBS

    modules = sorted(path.stem for path in (TESTS / "fuzz").glob("hostile_*.py"))
    corpus = [path for path in (TESTS / "fuzz/corpus").rglob("*") if path.is_file()]
    return {
        "hostile": {name.removeprefix("hostile_"): len(importlib.import_module(f"fuzz.{name}").HOSTILE) for name in modules},
        "codecs": len(CODECS),
        "containers": len(CONTAINERS),
        "kernels": len(kernels.KERNELS),
        "instruction_sets": list(kernels.available()),
        "targets": len(TARGETS),
        "verbs": len(VERBS),
        "corpus": {"inputs": len(corpus), "bytes": sum(path.stat().st_size for path in corpus)},
        "lines": {"code": lines_of("src/**/*.py"), "native": lines_of("native/**/*"), "tests": lines_of("tests/**/*.py")},
    }


# The points at which a run is stopped: the drivers of tests/crash say how many there are; this plugin adds them up.
PLUGIN = """
import json, os, subprocess
import pytest

_run = subprocess.run
_test = ""

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    global _test
    _test = item.nodeid

def counting(command, *arguments, **options):
    done = _run(command, *arguments, **options)
    if isinstance(command, list) and any(str(part).endswith("driver.py") for part in command) and done.stdout:
        first = done.stdout.splitlines()[0]
        total = json.loads(first)["total"] if first.startswith('{"total"') else 0
        with open(os.environ["VARIABLE"], "a") as file:
            file.write(json.dumps([_test, total]) + "\\n")
    return done

subprocess.run = counting
""".replace("VARIABLE", POINTS_VARIABLE)


def points() -> Figures:
    """Run the crash tests and add up their points by what stops the run."""
    found: defaultdict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "count_points.py").write_text(PLUGIN)
        counts = Path(folder) / "points.jsonl"
        counts.touch()
        environment = os.environ | {POINTS_VARIABLE: str(counts), "PYTHONPATH": folder}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "count_points", str(TESTS / "crash")]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        for line in counts.read_text().splitlines():
            test, total = json.loads(line)
            found["kill" if "kill" in test else "error"] += total
    return dict(found)


def count(*, with_points: bool) -> Figures:
    before: Figures = json.loads(COUNTED.read_text()) if COUNTED.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "tests": {name: collected(name) for name in FOLDERS if name != "conformance"}
        | {"conformance": conformance_functions()},
        **structure(),
        "points": points() if with_points else before.get("points", {}),
    }


# The page --------------------------------------------------------------------------------------


def table(heading: list[str], rows: list[list[object]]) -> str:
    """Markdown; numbers with separators, to the right."""
    numeric = [all(isinstance(row[at], int) for row in rows) for at in range(len(heading))]
    written = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    rule = ["---:" if number else "---" for number in numeric]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *written))


def summary(counted: Figures) -> str:
    lines = counted["lines"]
    return (
        f"Counted on {counted['date']} at {counted['commit']}: {sum(counted['tests'].values()):,} tests of "
        f"{lines['tests']:,} lines, for {lines['code']:,} lines of Python and {lines['native']:,} of C++; "
        f"{counted['codecs']} codecs, {counted['containers']} containers, {counted['kernels']} kernels "
        f"({', '.join(counted['instruction_sets'])} on the machine that counted)."
    )


def tests_table(counted: Figures) -> str:
    rows: list[list[object]] = [[f"`tests/{name}`", what, counted["tests"][name]] for name, what in FOLDERS.items()]
    return table(["folder", "what", "tests"], rows)


def hostile_table(counted: Figures) -> str:
    rows: list[list[object]] = [[name, cases] for name, cases in counted["hostile"].items()]
    return table(["format", "named hostile files"], [*rows, ["all", sum(counted["hostile"].values())]])


def points_table(counted: Figures) -> str:
    kinds = {"kill": "SIGKILL at a call of the write path", "error": "ENOSPC or EIO from a call of the write path"}
    found: list[list[object]] = [[text, counted["points"][kind]] for kind, text in kinds.items() if kind in counted["points"]]
    return table(["what happens", "points in one run of the tests"], found) if found else "Not counted yet."


def fuzz_table(rows: list[Figures]) -> str:
    """Executions of each target, all runs added up."""
    sums: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        line = sums.setdefault((row["target"], row["engine"]), [0, 0, 0, 0, ""])
        for at, key in enumerate(("executions", "cpu_seconds", "findings")):
            line[at] += row[key] or 0
        line[3] = max(line[3], row.get("edges") or 0)
        line[4] = max(line[4], f"{row['date']}, {row['commit']}")
    listed: list[list[object]] = [
        [target, engine, executions, round(seconds / 60), f"{edges:,}" if edges else "", findings, last]
        for (target, engine), (executions, seconds, findings, edges, last) in sums.items()
    ]
    heading = ["target", "engine", "executions", "CPU minutes", "edges", "findings", "last run"]
    return table(heading, listed) if listed else "No run is recorded yet."


def page(text: str, counted: Figures, runs: list[Figures]) -> str:
    """The page with new tables."""
    tables = {
        "summary": summary(counted), "tests": tests_table(counted), "hostile": hostile_table(counted),
        "points": points_table(counted), "fuzz": fuzz_table(runs),
        "corpus": f"{counted['corpus']['inputs']:,} inputs in {counted['corpus']['bytes'] / 1000:,.0f} KB for "
                  f"{counted['targets']} targets; {counted['verbs']} commands with their options.",
    }  # fmt: skip
    for name, made in tables.items():
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        assert pattern.search(text), f"the page has no place for '{name}'"
        text = pattern.sub(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", action="store_true", help="run the crash tests and count their points")
    parser.add_argument("--page", action="store_true", help="count nothing anew")
    given = parser.parse_args()
    if not given.page:
        COUNTED.write_text(json.dumps(count(with_points=given.points), indent=2) + "\n")
    runs = json.loads((TESTS / "fuzz/executions.json").read_text())
    PAGE.write_text(page(PAGE.read_text(), json.loads(COUNTED.read_text()), runs))


if __name__ == "__main__":
    main()
