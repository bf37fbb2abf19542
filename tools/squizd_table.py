"""Measure a real model in every form of SQUIZD: size, perplexity, KL divergence, load time, tokens per second.

    python tools/squizd_table.py MODEL TEXT docs/squizd.json [--windows 4 --context 512]

The weights are those of MODEL with permuted channels (`tools/permute.py`). Each form is made by the command a user would type,
judged with f32 activations against the f32 source, and then run as its own process for the clock. Rows are kept in the JSON and
saved one by one, so that a stopped run continues; the tables go into docs/squizd.md. `permuted.Q4_K_M.gguf`, if `make quality`
made it with llama.cpp, stands beside them.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from permute import permute
from quality_model import Judge

from flyweight.checkpoint import open_checkpoint
from flyweight.runtime.tensors import Tensors

PROMPT = "Name three animals that live in the sea."
QUANTIZERS = ("nearest", "edge", "clip", "hqq")
SUB_BLOCKS = (32, 64, 96, 128, 192, 0)
LONGEST = 1 << 20  # than any row


def recipe(length: int, quantizer: str) -> str:
    """Matrices of the layers in sub-blocks of one length (0: a row), everything else in bf16."""
    return f"""
[[rules]]
match = "*_proj.weight"
codec = "tabled"
params = {{ bits = 4, length = {length or LONGEST} }}
quantizer = "{quantizer}"

[[rules]]
match = "*"
codec = "dense"
dtype = "bf16"
"""


FORMS: dict[str, list[str]] = {
    "INT4": ["--quant", "int4", "--dtype", "bf16"],
    "INT4, half of the FFN blocks dropped": ["--quant", "int4", "--dtype", "bf16", "--sparse", "0.5"],
    "INT4, a tenth of the FFN blocks dropped": ["--quant", "int4", "--dtype", "bf16", "--sparse", "0.1"],
    "INT2 hybrid": ["--quant", "int2", "--dtype", "bf16"],
    "TCA_TBE, bf16": ["--quant", "tca", "--dtype", "bf16"],
    "ASTC 4×4": ["--quant", "astc", "--dtype", "bf16"],
    "ASTC 6×6": ["--quant", "astc-6x6", "--dtype", "bf16"],
    "plain bf16": ["--quant", "none", "--dtype", "bf16"],
}


def flyweight(*arguments: str | Path) -> Any:
    command = [sys.executable, "-m", "flyweight", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def judged(judge: Judge, form: Path) -> dict[str, Any]:
    """What a file says, and what it takes."""
    with open_checkpoint(form) as checkpoint:
        tensors = Tensors(checkpoint)
        weights = sum(tensors.entry(name).spec.size for name in tensors)
        figures = judge(judge.predictor(tensors))
    nbytes = form.stat().st_size
    return {"bytes": nbytes, "file_bits_per_weight": round(8 * nbytes / weights, 3), **figures}


def timed(form: Path) -> dict[str, Any]:
    """How fast it starts and runs: the best of three processes."""
    runs = [flyweight("run", form, PROMPT, "--max-tokens", "64") for _ in range(3)]
    return {
        "load_ms": round(min(run["load_ms"] for run in runs), 1),
        "decode_tokens_per_s": round(max(run["decode_tokens_per_s"] for run in runs), 1),
    }


READING = """\
- **The default of INT4 is 64 weights per scale, with the quantizer `edge`.** A scale entry takes 16 bytes, so 32, 64 and 128
  weights per scale give 8, 6 and 5 bits per weight. From 32 to 64, the size falls by a quarter and KL divergence rises by a
  quarter; from 64 to 128, the size falls by a sixth and KL divergence rises by a quarter again. `edge` has the least KL
  divergence at 64 and above, except at 96; at 32 and 96 `clip` has (`--recipe`).
- **llama.cpp's Q4_K_M is more accurate at equal size.** 2 of the 6 bits of INT4 are ids and f32 pairs, while Q4_K spends half
  a bit on scales. Also, rows of 576 are not a multiple of 256, so on this model most of Q4_K_M is in fact Q5_0, Q6_K and
  Q8_0.
- **TCA_TBE** is lossless; its small divergence is the rounding of the f32 source to bf16.
- **ASTC 4×4** takes 8 bits, like INT4 with 32 weights per scale, and is more accurate; 6×6 is too coarse for weights.
- **INT2 and dropped blocks** destroy a model of this size. They are listed because the format has them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--no-clock", dest="clock", action="store_false", help="leave load time and speed to a later run")
    given = parser.parse_args()
    permuted = given.model.parent / "permuted"
    if not permuted.exists():
        permute(given.model, permuted)
    judge = Judge(permuted, given.text, given.context, given.windows)
    report: dict[str, Any] = json.loads(given.report.read_text("utf-8")) if given.report.exists() else {}
    asked = judge.text(given.text)
    if report.get("asked") != asked:
        report = {"asked": asked, "forms": {}, "sub_blocks": {}, "peers": {}}
    report |= {"date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine()}

    def save(table: str, label: str, figures: dict[str, Any]) -> None:
        report[table][label] = figures
        staged = given.report.with_suffix(".part")
        staged.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        staged.replace(given.report)
        kl, bits = figures["kl_mean"]["value"], figures["file_bits_per_weight"]
        print(f"{time.strftime('%H:%M:%S')} {label:44} {bits:6.3f} bits  KL {kl:.5f}", flush=True)

    out = permuted.with_name("form.squizd")
    for label, options in FORMS.items():
        row = report["forms"].get(label)
        if row is None or (given.clock and "load_ms" not in row):
            flyweight("convert", permuted, out, "--force", *options)
            save("forms", label, (row or judged(judge, out)) | (timed(out) if given.clock else {}))
    for length in SUB_BLOCKS:
        for quantizer in QUANTIZERS:
            label = f"{length or 'row'} {quantizer}"
            if label not in report["sub_blocks"]:
                path = out.with_suffix(".toml")
                path.write_text(recipe(length, quantizer), encoding="utf-8")
                flyweight("convert", permuted, out, "--force", "--recipe", path)
                save("sub_blocks", label, judged(judge, out))
    peer, label = permuted.with_suffix(".Q4_K_M.gguf"), "llama.cpp Q4_K_M"
    if peer.exists() and label not in report["peers"]:
        save("peers", label, judged(judge, peer) | (timed(peer) if given.clock else {}))
    given.report.with_suffix(".md").write_text(page(report), encoding="utf-8")


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
            lines += [f"## {title}", "", *_table(report[key]), ""]
    return "\n".join(lines)


def _table(rows: dict[str, Any]) -> list[str]:
    lines = [
        "| form | MB | bits/weight of the file | perplexity | KL | same top-1 | load ms | tokens/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, row in rows.items():
        cells = [
            label, f"{row['bytes'] / 1e6:.1f}", f"{row['file_bits_per_weight']:.2f}", f"{row['perplexity']['value']:.2f}",
            f"{row['kl_mean']['value']:.4f}", f"{100 * row['same_top']['value']:.1f} %",
            *(f"{row[key]:.0f}" if key in row else "" for key in ("load_ms", "decode_tokens_per_s")),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
