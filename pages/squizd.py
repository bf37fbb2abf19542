"""docs/squizd.md: what the forms of a SQUIZD file cost a real model."""

from __future__ import annotations

from typing import Any

from bench import recorded
from pages.markdown import table

READING = """\
- **The default of INT4 is 64 weights per scale, with the quantizer `anchored`.** A scale entry takes 16 bytes, so 32, 64 and
  128 weights per scale give 8, 6 and 5 bits per weight. From 32 to 64, the size falls by a quarter and KL divergence rises by a
  quarter; from 64 to 128, the size falls by a sixth and KL divergence rises by a quarter again. `anchored` has the least KL
  divergence at 64 and above, except at 96; at 32 and 96 `clip` has (`--recipe`).
- **llama.cpp's Q4_K_M is more accurate at equal size.** 2 of the 6 bits of INT4 are ids and f32 pairs, while Q4_K spends half
  a bit on scales. Also, rows of 576 are not a multiple of 256, so on this model most of Q4_K_M is in fact Q5_0, Q6_K and
  Q8_0.
- **TCA_TBE** is lossless; its small divergence is the rounding of the f32 source to bf16.
- **ASTC 4×4** takes 8 bits, like INT4 with 32 weights per scale, and is more accurate; 6×6 is too coarse for weights.
- **INT2 and dropped blocks** destroy a model of this size. They are listed because the format has them."""
HEADING = ("form", "MB", "bits/weight of the file", "perplexity", "KL", "same top-1", "load ms", "tokens/s")


def cells(label: str, row: dict[str, Any]) -> tuple[str, ...]:
    return (
        label, f"{row['bytes'] / 1e6:.1f}", f"{row['file_bits_per_weight']:.2f}", f"{row['perplexity']['value']:.2f}",
        f"{row['kl_mean']['value']:.4f}", f"{100 * row['same_top']['value']:.1f} %",
        *(f"{row[key]:.0f}" if key in row else "" for key in ("load_ms", "decode_tokens_per_s")),
    )  # fmt: skip


def page(report: dict[str, Any]) -> str:
    asked = report["asked"]
    lines = ["# SQUIZD on a real model", ""]
    lines += [
        f"SmolLM2-135M-Instruct, channels permuted; {asked['predicted_tokens']:,} predicted tokens of {asked['text']},",
        f"windows of {asked['context']}, f32 activations; KL in nats per token against f32. Load and speed: `flyweight run`,",
        f"best of 3, {report['machine']}, {report['date']}. Written by `make squizd`.",
        "",
    ]
    lines += [*READING.splitlines(), ""]
    for title, key in (
        ("Forms", "forms"),
        ("Compared with llama.cpp", "peers"),
        ("INT4: sub-block length and quantizer", "sub_blocks"),
    ):
        if report[key]:
            lines += [f"## {title}", "", table(HEADING, (cells(*row) for row in report[key].items())), ""]
    return "\n".join(lines)


def written() -> dict[str, str]:
    return {"docs/squizd.md": page(recorded("squizd"))}
