"""Measure a real model in every form of SQUIZD: size, perplexity, KL divergence, load time, tokens per second.

    python -m bench.quality.squizd_forms MODEL TEXT [--windows 4 --context 512]

The weights are those of MODEL with permuted channels (`permute`). Each form is made by the command a user would type, judged
with f32 activations against the f32 source, and then run as its own process for the clock. Rows are recorded one by one, so
that a stopped run continues; `python -m pages squizd` writes the page. `permuted.Q4_K_M.gguf`, if `make quality` made it with
llama.cpp, stands beside them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from bench import record, recorded
from bench.quality.model import Judge
from bench.quality.permute import permuted_beside
from bench.quality.verb import flyweight
from flyweight.bench.harness import processor
from flyweight.checkpoint import open_checkpoint
from flyweight.runtime.tensors import Tensors

PROMPT = "Name three animals that live in the sea."
QUANTIZERS = ("nearest", "anchored", "clip", "hqq")
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
    runs = [flyweight("run", form, PROMPT, "--max-tokens", "64").document for _ in range(3)]
    return {
        "load_ms": round(min(run["load_ms"] for run in runs), 1),
        "decode_tokens_per_s": round(max(run["decode_tokens_per_s"] for run in runs), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--no-clock", dest="clock", action="store_false", help="leave load time and speed to a later run")
    given = parser.parse_args()
    permuted = permuted_beside(given.model)
    judge = Judge(permuted, given.text, given.context, given.windows)
    report = recorded("squizd")
    asked = judge.text(given.text)
    if report.get("asked") != asked:
        report = {"asked": asked, "forms": {}, "sub_blocks": {}, "peers": {}}
    report |= {"date": time.strftime("%Y-%m-%d"), "machine": processor()}

    def save(table: str, label: str, figures: dict[str, Any]) -> None:
        report[table][label] = figures
        record("squizd", report)
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


if __name__ == "__main__":
    main()
