"""The record of fuzzing: one row for each run that was worth recording, in executions.json.

A row has the target, the engine, the number of executions, the seed of the first job, the number of jobs, what it took and
what it found, the date and the commit. docs/testing.md is made from it; nobody types a number there.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["PATH", "append", "rows"]

PATH = Path(__file__).with_name("executions.json")
FIELDS = ("target", "engine", "executions", "seed", "jobs", "cpu_seconds", "findings", "date", "commit")
"""What every row has; others may follow."""


def rows() -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = json.loads(PATH.read_text())
    return recorded


def _commit() -> str:
    def said(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=PATH.parent, capture_output=True, text=True, check=True).stdout.strip()

    # What the tools of fuzzing add themselves does not count as a change.
    changed = [
        line for line in said("status", "--porcelain").splitlines() if "executions.json" not in line and "??" not in line
    ]
    return said("rev-parse", "--short=10", "HEAD") + ("+changes" if changed else "")


def append(new: Iterable[Mapping[str, Any]]) -> None:
    """One row to a line, so that runs in two branches merge."""
    dated = {"date": datetime.now(UTC).date().isoformat(), "commit": _commit()}
    every = [*rows(), *({**row, **dated} for row in new)]
    PATH.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in every) + "\n]\n")
    print("recorded; `python -m pages testing` puts it into docs/testing.md")
