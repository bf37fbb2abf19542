"""Everything that measures: kernels, whole models, what compression costs. `python -m bench.kernels.decode`, and so on.

Figures are kept in bench/results; `python -m pages` writes what is told of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "record", "recorded"]

RESULTS = Path(__file__).parent / "results"


def recorded(name: str) -> dict[str, Any]:
    """What was measured last under a name; empty if nothing was."""
    file = RESULTS / f"{name}.json"
    report: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return report


def record(name: str, report: dict[str, Any]) -> None:
    """Keep a report, all of it or none: a measurement that is stopped leaves the one before."""
    staged = RESULTS / f"{name}.part"
    staged.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    staged.replace(RESULTS / f"{name}.json")
