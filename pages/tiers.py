"""docs/tiers.md: the tiers of a model beside other ways to load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench import recorded
from pages.markdown import spread, table

READING = """\
- **Load** is from the call that loads to the logits of one token; Python and imports are up by then (for transformers they take
  seconds more). *Cold*: the row's own files dropped from the page cache and found dropped, programs not. *Warm*: right after.
  *Boot*: from the start of the process, programs dropped too: the first load after a start of the machine, once. Medians; a way
  that takes over a minute was run once. Before any, most of the memory that is free is used and freed, and all but 8 GB is held
  meanwhile: on this machine the first touch of memory costs several times the next, and that varies from run to run.
- **One token reads every weight**, so a load that only maps a file cannot look fast here: that is why our rows are not nothing.
- **RAM**: *private* is memory that was written and can only be swapped; *resident* counts the mapped pages of the file too,
  which the machine drops when it needs them.
- **native** is the Hugging Face directory as it is, **int8, int4, int3** the arrays of an npy-dir as they are, **finalized**,
  **cache** and **packed** tiers built once from the int4 arrays, beside them (`cache build --in-place`). Disk counts a tier
  alone; the arrays it was built from stay.
- **The factor 54** of Squish's page compares its warm load with the first load of another program after a start of the machine,
  program and weights from disk; so it does here (*boot*). It says more about page caches than about programs: warm beside warm
  is the fair one, and cold beside cold and boot beside boot are in the table.
- **Not the machine of the published figures.** Those are from Apple silicon with a GPU; here all have two cores and no GPU.
  Ratios are worth more than seconds.
- **Perplexity** with f32 activations, so that only the weights differ; transformers and llama.cpp as they compute themselves;
  mlx-lm's files by our runtime. The 1.5B shape has random weights and none.
- **Disk speed** is reading what the first token needs into the page cache, with one reader or two, whichever is faster, in a
  process of its own that has the same memory. Of the 1.5B shape `native`, `packed` and `cache` were loaded cold, and read, five
  times by turns, after the others.
- **First load** is decoding and building, per byte of the tier: from arrays on disk beside reading them and writing as much,
  and from arrays in memory beside writing as much. What bounds it is the processor: every byte is copied into the page cache
  and hashed, and the arrays are hashed as well.
- **Past the page cache** two readers can be faster still (the targets below have it beside): the host's own cache answers, and
  no pages have to be found for what is read, which takes a core a second for 3 GB. No program that keeps what it reads has
  that.
"""
COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "way": lambda row: f"{row['who']}, {row['form']}",
    "cold ms": lambda row: spread(row["cold"]),
    "boot ms": lambda row: f"{row['boot']['median']:,.0f}" if "boot" in row else "",
    "warm ms": lambda row: spread(row["warm"]),
    "disk MB": lambda row: f"{row['disk'] / 1e6:,.0f}",
    "private MB": lambda row: f"{row['private']['median']:,.0f}",
    "resident MB": lambda row: f"{row['resident']['median']:,.0f}",
    "cold / disk speed": lambda row: of_disk(row),
    "perplexity": lambda row: f"{row['perplexity']:.2f}" if "perplexity" in row else "",
}


def of_disk(row: Mapping[str, Any]) -> str:
    return f"{row['cold']['median'] / row['read, plain']['median']:.2f}" if "read, plain" in row else ""


def page(report: Mapping[str, Any]) -> Iterator[str]:
    yield "# The tiers beside other ways to load a model\n"
    yield (
        f"{report['date'][:10]}, {report['processor']}, kernels {report['kernels']}, {report['threads']} threads, "
        f"{report['runs']} runs, load average {report['load_average']:.1f}. Made by `make tiers`.\n"
    )
    yield READING
    for name, rows in report["models"].items():
        yield f"## {name}\n"
        yield table(tuple(COLUMNS), ([cell(row) for cell in COLUMNS.values()] for row in rows.values())) + "\n"
    if report["results"]:
        yield "## Targets\n"
        yield table(("", "", "reached", "", "beside", "target"), map(target_of, report["results"]))


def target_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    beside = ", ".join(f"{ratio:.3f}× {who}" for who, ratio in row["ratios"].items())
    return row["verdict"], row["name"], spread(row["figures"][row["ours"]]), row["unit"], beside, row["target"]


def written() -> dict[str, str]:
    return {"docs/tiers.md": "\n".join(page(recorded("tiers"))) + "\n"}
