"""What eight bits keep of a real model: the cosine of every tensor, and the first token of twenty prompts.

    python -m bench.quality.int8_agreement .models/SmolLM2-135M-Instruct.Q4_1.gguf

The source, decoded to f32, becomes an npy-dir of `int8` (a scale a row) and of `int8-g64`. Of every quantized tensor the cosine
with its source should be 0.99995, that is 1 − cosine at most 50 millionths. The source answers with f32 activations and an f32
cache; the directories with the same (--exact) and as they run by default, int8 activations and an f16 cache.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import flyweight
from bench import record
from flyweight.bench import machine
from flyweight.checkpoint import open_checkpoint
from flyweight.pipeline.conversion_report import Drift
from flyweight.runtime.model import open_model

FORMS = ("int8", "int8-g64")
MOST_LOST = 50
"""Millionths of 1 − cosine."""
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "The opposite of hot is",
    "Two plus two equals",
    "The largest planet in our solar system is",
    "Once upon a time, there was a",
    "def add(a, b):\n    return",
    "for i in range(10):\n    print(",
    "SELECT name FROM users WHERE",
    "The quick brown fox jumps over the lazy",
    "Roses are red, violets are",
    "To be, or not to be, that is the",
    "The chemical symbol for gold is",
    "In 1969, the first man walked on the",
    "The days of the week are Monday, Tuesday,",
    "Dear Sir or Madam, I am writing to",
    "Photosynthesis is the process by which plants",
    "The author of Romeo and Juliet is William",
    "A triangle has three",
    "Thank you very much for your",
)


def lost(source: Path, made: Path) -> dict[str, float]:
    """1 − cosine of every quantized tensor, in millionths."""
    found = {}
    with open_checkpoint(source) as before, open_checkpoint(made) as after:
        for name in (n for n, entry in after.manifest.entries.items() if entry.codec.name != "raw"):
            drift = Drift()
            drift.add(before[name].astype(np.float64), after[name].astype(np.float64))
            found[name] = (1 - drift.cosine) * 1e6
    return found


def first_tokens(path: Path, *, exact: bool) -> tuple[list[int], list[float]]:
    """The likeliest first token of every prompt, and how far its logit is ahead of the next."""
    tokens, margins = [], []
    with open_model(path, context=64, int8=not exact, kv="f32" if exact else "f16") as model:
        for prompt in PROMPTS:
            logits = model.decoder.forward(model.tokenizer.encode(prompt, special=False), model.cache())[-1]
            second, first = np.sort(np.partition(logits, -2)[-2:])
            tokens.append(int(logits.argmax()))
            margins.append(float(first - second))
    return tokens, margins


def result(name: str, unit: str, figures: list[float], target: str, met: bool, **more: Any) -> dict[str, Any]:
    spread = {"median": float(np.median(figures)), "min": min(figures), "max": max(figures)}
    return {
        "name": name, "unit": unit, "ours": "flyweight", "figures": {"flyweight": spread}, "ratios": {}, "target": target,
        "verdict": "met" if met else "missed", **more,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        dense = Path(folder) / "dense"
        flyweight.convert(options.model, dense, to="hf", quant="dense", dtype="f32")
        expected, margins = first_tokens(dense, exact=True)
        for form in FORMS:
            made = Path(folder) / form
            flyweight.convert(dense, made, to="npy_dir", quant=form)
            gaps = lost(dense, made)
            missed = {name: round(gap, 2) for name, gap in gaps.items() if gap > MOST_LOST}
            name, target = f"{form}: 1 − cosine of {len(gaps)} tensors", f"all at most {MOST_LOST}"
            results.append(result(name, "millionths", [*gaps.values()], target, not missed, missed=missed))
            for exact in (True, False):
                tokens, _ = first_tokens(made, exact=exact)
                wrong = {p: round(m, 3) for p, m, a, b in zip(PROMPTS, margins, expected, tokens, strict=True) if a != b}
                count = len(PROMPTS)
                name, target = f"{form}: same first token, {'--exact' if exact else 'by default'}", f"{count} of {count}"
                results.append(result(name, f"of {count}", [float(count - len(wrong))], target, not wrong, differing=wrong))
    for line in results:
        figure = line["figures"]["flyweight"]
        found = f"{figure['median']:.4g} [{figure['min']:.4g}–{figure['max']:.4g}]"
        sys.stdout.write(f"{line['verdict']:8}{line['name']:48}{found} {line['unit']} ({line['target']})\n")
        for name, value in {**line.get("missed", {}), **line.get("differing", {})}.items():
            sys.stdout.write(f"        {name!r}: {value}\n")
    report = {**machine(), "title": "What eight bits keep of a real model", "least_margin": min(margins), "results": results}
    record("int8_agreement", report)


if __name__ == "__main__":
    main()
