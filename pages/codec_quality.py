"""docs/codec-quality.md and its charts: bits per weight against error, and what a whole model makes of it."""

from __future__ import annotations

from math import log10
from typing import Any

from bench import recorded
from pages.chart import Point, chart
from pages.markdown import table

Row = dict[str, Any]


def name_of(row: Row) -> str:
    params = row["params"]
    bits, group = str(params.get("bits", "")), f" g{params['group']}" if "group" in params else ""
    return f"{row['codec']}{' ' + bits if bits else ''}{group}"


def parameters(row: Row) -> str:
    return " ".join(f"{key}={value}" for key, value in row["params"].items()) or "–"


def quantizer_of(row: Row) -> str:
    return f"{row['quantizer']}{' (default)' if row['default'] else ''}"


def weights_chart(rows: list[Row]) -> str:
    points = [
        Point(
            row["bits_per_weight"], row["snr_db"], row["quantizer"], name_of(row),
            f"{name_of(row)}, {row['quantizer']}: {row['bits_per_weight']} bits, {100 * row['relative_error']:.3f} %",
        )
        for row in rows if row["snr_db"] is not None
    ]  # fmt: skip
    top = 5 * (int(max(point.good for point in points)) // 5 + 1)
    return chart(points, "SNR, dB", [(snr, str(snr)) for snr in range(0, top + 1, 5)])


def model_chart(rows: list[Row], peers: dict[str, Row]) -> str:
    def point(figures: Row, series: str, name: str) -> Point:
        kl = figures["kl_mean"]["value"]
        title = f"{name}, {series}: {figures['file_bits_per_weight']} bits, KL {kl:.4f}"
        return Point(figures["file_bits_per_weight"], -log10(kl), series, name, title)

    points = [point(row["model"], row["quantizer"], name_of(row)) for row in rows if "model" in row]
    points += [point(figures, "llama.cpp", f"llama.cpp {name}") for name, figures in peers.items()]
    ticks = [(power, f"{10.0**-power:g}") for power in range(-1, 5) if power - 1 < max(p.good for p in points)]
    return chart(points, "KL divergence, nats (less is better: up)", ticks, "bits per weight of the whole file")


FIGURES = ("perplexity", "change", "KL, nats", "KL 99.9 %", "same top")


def figures_of(figures: Row) -> tuple[str, ...]:
    change, kl = figures["perplexity_change"], figures["kl_mean"]
    return (
        f"{figures['perplexity']['value']:.4g}",
        f"{change['value']:+.3g} ± {change['error']:.2g}",
        f"{kl['value']:.3g} ± {kl['error']:.1g}",
        f"{figures['kl_99_9']['value']:.2g}",
        f"{100 * figures['same_top']['value']:.1f} %",
    )


def model_part(report: Row) -> str:
    measured = [row for row in report["results"] if "model" in row]
    if not measured:
        return ""
    asked = report["asked"]
    rows = [
        (row["model"]["file_bits_per_weight"], (f"`{row['codec']}`", parameters(row), quantizer_of(row)), row["model"])
        for row in measured
    ]
    rows += [
        (figures["file_bits_per_weight"], (f"**llama.cpp {name}**", "its mixture", "its own"), figures)
        for name, figures in report["peers"].items()
    ]
    rows.sort(key=lambda row: (row[0], row[2]["kl_mean"]["value"]))
    heading = ("bits/weight, file", "codec", "parameters", "quantizer", *FIGURES)
    forms = table(heading, ((f"{bits:.3f}", *what, *figures_of(figures)) for bits, what, figures in rows))
    runtime = table(("", *FIGURES), ((name, *figures_of(figures)) for name, figures in report["runtime"].items()))
    reference = measured[0]["model"]["reference_perplexity"]["value"]
    missing = len(report["results"]) - len(measured)
    note = f" {missing} rows of the table above have not been run through the model." if missing else ""
    return f"""
## Accuracy of the model

All of SmolLM2-135M-Instruct, channels permuted, on the first {asked["windows"]} × {asked["context"]} tokens of the Debian
Administrator's Handbook ([how](how-to/evaluate.md)), {asked["predicted_tokens"]:,} predictions, compared with the same model
in f32 (perplexity {reference:.2f}). ± is a standard error over tokens. All rows use the same tokens, so their order is more
certain than these errors suggest. The seven matrices of each layer are in the codec; the embedding, 21 % of the weights, is
in q8_0. Bits are those of the whole model. Products, activations and cache are f32, so that only the weights differ. K types
get 2304 columns at a time, where a row has 576. llama.cpp's files were quantized from the same weights by its own
`llama_model_quantize` (llama-cpp-python 0.3.36) and run by Flyweight. Where a row is not a multiple of 256 it uses a wider
type, so its files have more bits than their names say.{note}

A small squared error is not enough. One table of 16 values for a whole tensor (`palette`, 4 bits) has the relative error of
4-bit groups, but clips the few largest weights by most of their size, which destroys the model.

![bits per weight of the file against KL divergence](codec-quality-model.svg)

{forms}

### Activations and cache

The demo model as it is (Q4_1), on the same tokens, compared with itself with f32 activations and an f32 cache. int8
activations have one scale for every 32 columns, like llama.cpp's.

{runtime}
"""


def page(report: Row) -> str:
    codecs = table(
        ("bits/weight", "codec", "parameters", "quantizer", "relative error", "SNR, dB", "MB/s"),
        (
            (
                f"{row['bits_per_weight']:.3f}", f"`{row['codec']}`", parameters(row), quantizer_of(row),
                f"{100 * row['relative_error']:.3f} %", row["snr_db"], f"{row['encode_mb_per_s']}",
            )
            for row in report["results"]
        ),
    )  # fmt: skip
    return f"""# Codecs: bits per weight against error

`make quality` writes this page and the charts, from [quality.json](../bench/results/quality.json). {report["date"]},
{report["processor"]}, kernels {report["kernels"]}.

## Error of the weights

![bits per weight against signal-to-noise ratio](codec-quality.svg)

Weights: SmolLM2-135M-Instruct, the seven matrices of layers {" and ".join(map(str, report["layers"]))},
{report["weights"]:,} weights, decoded from Q4_1, 2304 to a row. Residual, MLP and value channels are permuted at random,
which keeps the function and changes the groups. Relative error: root mean square of the error divided by that of the weights.
Speed: MB/s of float32 encoded on one thread, on a machine that may have been busy. There are no importance weights. The
squared error only approximates the effect on a model, which the second part measures.

{codecs}
{model_part(report)}"""


def written() -> dict[str, str]:
    report = recorded("quality")
    files = {"docs/codec-quality.md": page(report), "docs/codec-quality.svg": weights_chart(report["results"])}
    if any("model" in row for row in report["results"]):
        files["docs/codec-quality-model.svg"] = model_chart(report["results"], report["peers"])
    return files
