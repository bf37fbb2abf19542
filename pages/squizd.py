"""docs/squizd.md: what the forms of a SQUIZD file cost a real model."""

from __future__ import annotations

from typing import Any

from bench import recorded
from pages.markdown import table

READING = """\
- **Default of INT4: 64 weights a scale, filled by `edge`.** A scale takes 16 bytes, so 32, 64, 128 weights cost 8, 6, 5 bits
  each. Going from 32 to 64 saves a quarter of the bytes for a quarter more divergence; on to 128 it is a sixth for as much
  again. From 64 on `edge` diverges least but for 96; at 32 and 96 `clip` does (`--recipe`).
- **llama.cpp's Q4_K_M is nearer to the source at equal size**, and must be: 2 of 6 bits of INT4 are ids and f32 pairs, where
  Q4_K spends half a bit on scales; and rows of 576 are no multiple of 256, so that on this model most of Q4_K_M is really
  Q5_0, Q6_K and Q8_0.
- **TCA_TBE** is exact: what diverges is the rounding of the f32 source to bf16.
- **ASTC 4×4** takes 8 bits, as INT4 with 32 weights a scale does, and is nearer; 6×6 is too coarse for weights.
- **INT2 and dropped blocks** destroy a model of this size. They are here because the format has them."""
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
        f"windows of {asked['context']}, f32 activations; KL in nats a token against f32. Load and speed: `flyweight run`,",
        f"best of 3, {report['machine']}, {report['date']}. Made by `make squizd`.",
        "",
    ]
    lines += [*READING.splitlines(), ""]
    for title, key in (
        ("Forms", "forms"),
        ("llama.cpp beside them", "peers"),
        ("INT4: sub-block length and quantizer", "sub_blocks"),
    ):
        if report[key]:
            lines += [f"## {title}", "", table(HEADING, (cells(*row) for row in report[key].items())), ""]
    return "\n".join(lines)


def written() -> dict[str, str]:
    return {"docs/squizd.md": page(recorded("squizd"))}
