"""docs/tiers.md: the tiers of a model beside other ways to load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench import recorded
from pages.markdown import spread, table

READING = """\
- **Load** is the time from the call that loads the model to the logits of one token. Python and imports are already loaded
  (for transformers they take seconds more). *Cold*: the row's own files were dropped from the page cache, which was checked;
  the program was not. *Warm*: directly afterwards. *Boot*: from the start of the process, with the program dropped from the
  page cache too, as in the first load after starting the machine; measured once. Figures are medians; rows that take over a
  minute were run once. Before each run, most of the free memory is used and freed, and during the run all but 8 GB is
  occupied: on this machine the first use of a page costs several times the next, and that varies from run to run.
- **One token reads every weight**, so mapping a file without reading it does not count as a load.
- **RAM**: *private* memory was written and can only be swapped; *resident* memory also counts the mapped pages of the file,
  which the system drops when it needs memory.
- **native** is the Hugging Face directory as it is. **int8, int4, int3** are the arrays of an npy-dir as they are.
  **finalized**, **cache** and **packed** are tiers built once from the int4 arrays, beside them (`cache build --in-place`).
  *disk MB* is the tier alone, without the arrays it was built from.
- **The factor 54** of Squish's page compares its warm load with the first load of another program after starting the machine,
  with program and weights read from disk. The same is measured here as *boot*. It depends more on page caches than on
  programs: comparing warm with warm is fair, and the table also allows cold with cold and boot with boot.
- **Another machine than in the published figures.** Those are from Apple silicon with a GPU; here everything runs on two
  cores without a GPU. Compare ratios, not seconds.
- **Perplexity** is computed with f32 activations, so that only the weights differ. transformers and llama.cpp use their own
  arithmetic; mlx-lm's files are run by Flyweight. The 1.5B model has random weights, so it has no perplexity.
- **Disk speed** is the time to read the bytes that the first token needs into the page cache, with one reader or two,
  whichever is faster, in a separate process with the same memory. For the 1.5B model, `native`, `packed` and `cache` were
  loaded cold, and read, five times in turn, after the others.
- **First load** is decoding and building, per byte of the tier. From arrays on disk it is compared with reading them and
  writing the same amount; from arrays in memory, with writing the same amount. The processor limits it: every byte is copied
  into the page cache and hashed, and the arrays are hashed too.
- **Reading past the page cache** (direct I/O) with two readers can be faster still; the targets below show it too. The host's
  own cache answers, and no pages have to be allocated, which takes one core a second for 3 GB. A program that keeps what it
  reads cannot use it.
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
    yield "# Loading a model: tiers compared with other tools\n"
    yield (
        f"{report['date'][:10]}, {report['processor']}, kernels {report['kernels']}, {report['threads']} threads, "
        f"{report['runs']} runs, load average {report['load_average']:.1f}. Written by `make tiers`.\n"
    )
    yield READING
    for name, rows in report["models"].items():
        yield f"## {name}\n"
        yield table(tuple(COLUMNS), ([cell(row) for cell in COLUMNS.values()] for row in rows.values())) + "\n"
    if report["results"]:
        yield "## Targets\n"
        yield table(("", "", "measured", "", "compared with", "target"), map(target_of, report["results"]))


def target_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    beside = ", ".join(f"{ratio:.3f}× {who}" for who, ratio in row["ratios"].items())
    return row["verdict"], row["name"], spread(row["figures"][row["ours"]]), row["unit"], beside, row["target"]


def written() -> dict[str, str]:
    return {"docs/tiers.md": "\n".join(page(recorded("tiers"))) + "\n"}
