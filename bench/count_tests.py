"""Counts what is tested; `python -m pages testing` writes the figures into docs/testing.md.

    python -m bench.count_tests              collect the tests, count cases
    python -m bench.count_tests --points     run tests/crash besides and count the points at which a run was stopped (minutes)

Executions of the fuzzers are in tests/fuzz/executions.json, which their `--record` adds to.
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

from bench import record, recorded

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
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
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "tests": {name: collected(name) for name in FOLDERS if name != "conformance"}
        | {"conformance": conformance_functions()},
        **structure(),
        "points": points() if with_points else recorded("testing").get("points", {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", action="store_true", help="run the crash tests and count their points")
    record("testing", count(with_points=parser.parse_args().points))


if __name__ == "__main__":
    main()
