"""The table of the README: one real model in every format, with the machine and the date. `make demo UPDATE=1` measures it."""

from __future__ import annotations

from typing import Any

from bench import recorded
from pages import ROOT
from pages.markdown import between, table, where

COLUMNS = (
    "", "size MB", "bits/weight", "convert s", "convert MB RAM", "vs the source", "perplexity", "KL", "tokens/s", "load ms",
    "run MB RAM",
)  # fmt: skip


def cells(form: dict[str, Any]) -> tuple[str, ...]:
    made, run = form["made"], form["run"]
    return (
        form["title"],
        f"{form['bytes'] / 1e6:.1f}",
        f"{form['bits_per_weight']:.3f}",
        *((f"{made['seconds']:.2f}", f"{made['peak_bytes'] / 1e6:.0f}") if made else ("", "")),
        form["versus_source"],
        f"{form['perplexity']:.2f}",
        f"{form['kl_mean']:.4f}",
        f"{run['decode_tokens_per_s']:.1f}",
        f"{run['load_ms']:.0f}",
        f"{run['peak_rss'] / 1e6:.0f}",
    )


def written() -> dict[str, str]:
    report = recorded("demo")
    if not report:
        return {}
    made = f"\n{where(report)}, {report['threads']} threads.\n\n{table(COLUMNS, map(cells, report['forms']))}\n"
    return {"README.md": between((ROOT / "README.md").read_text("utf-8"), "demo", made)}
