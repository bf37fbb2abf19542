"""The figures of docs/testing.md: tests, hostile files, points of failure, executions of the fuzzers.

A table stands between `<!-- name -->` and `<!-- /name -->`; everything else on the page is written by hand and has no figures.
"""

from __future__ import annotations

from typing import Any

from bench import recorded
from bench.count_tests import FOLDERS, Figures
from fuzz import ledger
from pages import ROOT
from pages.markdown import between, table

PAGE = "docs/testing.md"


def summary(counted: Figures) -> str:
    lines = counted["lines"]
    return (
        f"Counted on {counted['date']} at {counted['commit']}: {sum(counted['tests'].values()):,} tests of "
        f"{lines['tests']:,} lines, for {lines['code']:,} lines of Python and {lines['native']:,} of C++; "
        f"{counted['codecs']} codecs, {counted['containers']} containers, {counted['kernels']} kernels "
        f"({', '.join(counted['instruction_sets'])} on the machine that counted)."
    )


def tests_table(counted: Figures) -> str:
    rows = [[f"`tests/{name}`", what, counted["tests"][name]] for name, what in FOLDERS.items()]
    return table(["folder", "what", "tests"], rows)


def hostile_table(counted: Figures) -> str:
    rows = [[name, cases] for name, cases in counted["hostile"].items()]
    return table(["format", "named hostile files"], [*rows, ["all", sum(counted["hostile"].values())]])


def points_table(counted: Figures) -> str:
    kinds = {"kill": "SIGKILL at a call of the write path", "error": "ENOSPC or EIO from a call of the write path"}
    found = [[text, counted["points"][kind]] for kind, text in kinds.items() if kind in counted["points"]]
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
    listed = [
        [target, engine, executions, round(seconds / 60), f"{edges:,}" if edges else "", findings, last]
        for (target, engine), (executions, seconds, findings, edges, last) in sums.items()
    ]
    heading = ["target", "engine", "executions", "CPU minutes", "edges", "findings", "last run"]
    return table(heading, listed) if listed else "No run is recorded yet."


def page(text: str, counted: Figures, runs: list[Figures]) -> str:
    """The page with every table made anew."""
    tables = {
        "summary": summary(counted), "tests": tests_table(counted), "hostile": hostile_table(counted),
        "points": points_table(counted), "fuzz": fuzz_table(runs),
        "corpus": f"{counted['corpus']['inputs']:,} inputs in {counted['corpus']['bytes'] / 1000:,.0f} KB for "
                  f"{counted['targets']} targets; {counted['verbs']} commands with their options.",
    }  # fmt: skip
    for name, made in tables.items():
        text = between(text, name, made)
    return text


def written() -> dict[str, str]:
    return {PAGE: page((ROOT / PAGE).read_text("utf-8"), recorded("testing"), ledger.rows())}
