"""docs/quality.md and its charts: KL divergence at equal file size, ours and llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log10
from typing import Any

from bench import recorded
from bench.quality.sizes import CALIBRATED, JUDGED, PLAIN_ONLY, TYPES
from pages.chart import Point, curves
from pages.markdown import table

Row = dict[str, Any]

FORMS = {
    "llama_imatrix": "llama.cpp + imatrix",
    "llama": "llama.cpp",
    "plain": "ours, plain",
    "weighed": "ours, llama.cpp's imatrix",
    "named": "ours, same types",
    "stock": "ours, GGUF types for the size",
    "any": "ours, any codec for the size",
}
SIZED = ("llama_imatrix", "llama", "plain")
"""Whose file gives a size its name."""
TIMED = ("llama_imatrix", "weighed", "named")
CHARTED = ("llama_imatrix", "llama", "named", "stock", "any")


def reference(kind: str) -> str:
    return f"{'llama' if kind in PLAIN_ONLY else 'llama_imatrix'} {kind}"


def kl_of(row: Row, text: str) -> Row:
    found: Row = row["judged"][text]["kl_mean"]
    return found


def cell(rows: dict[str, Row], name: str, text: str, beside: Row | None) -> str:
    if name not in rows:
        return "–"
    kl = kl_of(rows[name], text)
    digits = -floor(log10(kl["error"]))
    figure = f"{kl['value']:.{digits}f} ± {kl['error']:.{digits}f}"
    return figure if beside is None or beside is rows[name] else f"{figure} ({kl['value'] / kl_of(beside, text)['value']:.2f})"


def of_sizes(rows: dict[str, Row], text: str) -> str:
    forms = [form for form in FORMS if any(name.startswith(f"{form} ") for name in rows)]

    def lines() -> Iterator[tuple[str, ...]]:
        for kind in TYPES:
            sized = next((rows[name] for form in SIZED if (name := f"{form} {kind}") in rows), None)
            if sized is None:
                continue
            beside = rows.get(reference(kind))
            yield kind, f"{sized['bits_per_weight']:.2f}", *(cell(rows, f"{form} {kind}", text, beside) for form in forms)

    return table(("size of", "bits/weight", *(FORMS[form] for form in forms)), lines())


def first_positions(rows: dict[str, Row]) -> str:
    def lines() -> Iterator[tuple[str, ...]]:
        for kind in TYPES:
            names = [reference(kind), f"named {kind}", f"stock {kind}"]
            if all(name in rows for name in names[:2]):
                firsts = (f"{rows[name]['judged']['prose']['kl_first']:.2g}" if name in rows else "–" for name in names)
                yield kind, *firsts

    return table(("size of", "llama.cpp + imatrix", "ours, same types", "ours, GGUF types for the size"), lines())


def of_mlx(rows: dict[str, Row]) -> str:
    names = {
        "mlx_lm 4bit": "mlx-lm, 4 bits, groups of 64",
        "mlx 4bit": "ours, the same with statistics",
        "hqq 4bit": "HQQ's rounding, 4 bits, groups of 64",
    }
    lines = (
        (title, f"{rows[name]['bits_per_weight']:.2f}", *(cell(rows, name, text, None) for text in JUDGED))
        for name, title in names.items()
        if name in rows
    )
    return table(("", "bits/weight", *JUDGED), lines)


def spent(ran: Row) -> str:
    """Of a file that is made in the process of the measurement itself, memory is not known."""
    return f"{ran['seconds']:.0f} s" + (f", {ran['peak_mb']:,} MB" if ran["peak_mb"] else "")


def of_cost(model: Row) -> str:
    rows = model["rows"]

    def lines() -> Iterator[tuple[str, ...]]:
        for kind in TYPES:
            names = [f"{form} {kind}" for form in TIMED]
            if sum(name in rows for name in names) > 1:
                yield kind, *(spent(rows[name]) if name in rows else "–" for name in names)

    gathered = table(("before the first file", ""), ((what, spent(ran)) for what, ran in model["cost"].items()))
    return f"{gathered}\n\n{table(('a file of', *(FORMS[form] for form in TIMED)), lines())}"


def of_model(name: str, model: Row) -> str:
    asked, rows = model["asked"], model["rows"]
    texts = "\n\n".join(f"### On {text} ({JUDGED[text].removesuffix('.txt')})\n\n{of_sizes(rows, text)}" for text in JUDGED)
    mlx = f"\n### MLX\n\n{of_mlx(rows)}\n" if "mlx_lm 4bit" in rows else ""
    first = first_positions(rows)
    return f"""
## {name}

![bits per weight of the file against KL divergence](quality-{name.lower()}.svg)

{asked["windows"]} windows of {asked["context"]} tokens from all over each text; source in {asked["dtype"]}; statistics of at
most {asked["tokens"]:,} tokens. KL divergence from the source in nats a token ± its standard error; behind it the share of what
llama.cpp has with its importance matrix at this size.

{texts}

### First positions

The first four predictions of each window, where activations are largest; prose.

{first}
{mlx}
### What it took

Seconds include everything, from start to the synced file; the machine was shared with other work.

{of_cost(model)}
"""


def page(report: Row) -> str:
    models = {name: model for name, model in report.items() if isinstance(model, dict) and model.get("rows")}
    calibrated = " and ".join(f"`{name}`" for name in CALIBRATED.values())
    return f"""# Quality: the best model of each size

`make quality` writes this page and its charts, from [sizes.json](../bench/results/sizes.json). {report["date"]},
{report["processor"]}, kernels {report["kernels"]}. [Codecs](codec-quality.md) compares single codecs and quantizers.

Models exist here only in quantized form, so their channels are permuted: the function stays, the old groups do not. Everybody
quantizes the same source and is calibrated on the same text: that which ships with Flyweight, and pieces of
{calibrated}. Judged are two other texts, with products, activations and cache in f32, so that nothing but the weights
differs. A size is that of the whole file or directory, tokenizer included.

- *llama.cpp*, *+ imatrix*: `llama-quantize`, plain and with the importance matrix of `llama-imatrix`.
- *ours, plain*: `--quant q4_k_m`: the same types without calibration.
- *ours, llama.cpp's imatrix*: `--quant q4_k_m --imatrix`: scales searched with llama.cpp's own importance matrix.
- *ours, same types*: `--quant q4_k_m --stats`: the same types again, errors fed back.
- *ours, GGUF types for the size*: `--target-size` of exactly these bytes. The file is an ordinary GGUF.
- *ours, any codec for the size*: the same as a Hugging Face directory.
{"".join(of_model(name, model) for name, model in models.items())}"""


def chart_of(rows: dict[str, Row]) -> str:
    points = [
        Point(
            rows[name]["bits_per_weight"], -log10(kl_of(rows[name], "prose")["value"]), FORMS[form], kind,
            f"{FORMS[form]}, {kind}: {rows[name]['bits_per_weight']:.2f} bits, KL {kl_of(rows[name], 'prose')['value']:.4f}",
        )
        for form in CHARTED for kind in TYPES if (name := f"{form} {kind}") in rows
    ]  # fmt: skip
    lowest, highest = min(point.good for point in points), max(point.good for point in points)
    ticks = [(power / 2, f"{10 ** (-power / 2):.2g}") for power in range(int(2 * lowest), int(2 * highest) + 2)]
    return curves(points, "KL divergence, nats (less is better: up)", ticks, "bits per weight of the whole file")


def written() -> dict[str, str]:
    report = recorded("sizes")
    charts = {
        f"docs/quality-{name.lower()}.svg": chart_of(model["rows"])
        for name, model in report.items()
        if isinstance(model, dict) and model.get("rows")
    }
    return {"docs/quality.md": page(report), **charts}
