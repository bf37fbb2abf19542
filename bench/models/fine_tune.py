"""A fine-tune to measure deltas on, made here: the demo model trained on real text, base and result as bf16 directories.

    python -m bench.models.fine_tune MODEL.gguf TEXT FOLDER       writes FOLDER/base and FOLDER/tuned

Trained as fine-tunes usually are: f32 weights and AdamW, a short warm-up and a cosine decay, all weights, saved as bf16.
Needs torch and transformers, and a few minutes; what is there already is kept.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import flyweight

STEPS, LENGTH, RATE, WARM_UP = 200, 128, 2e-5, 20
WEIGHTS = "model.safetensors"


def fine_tune(base: Path, text: Path, out: Path, steps: int) -> None:
    """Whole or absent: `out` is renamed into place."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    ids = tokenizer(text.read_text("utf-8"), return_tensors="pt").input_ids[0]
    windows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    begun = time.perf_counter()
    for step, batch in enumerate(windows[torch.randperm(len(windows))[:steps]].split(1)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step + 1 == steps:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - begun:.0f} s", flush=True)
    staged = out.with_name(f"{out.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(base, staged)  # training leaves the tokenizer and its settings alone
    (staged / WEIGHTS).unlink()
    model.to(torch.bfloat16).save_pretrained(staged)
    os.replace(staged, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    base, tuned = options.folder / "base", options.folder / "tuned"
    options.folder.mkdir(parents=True, exist_ok=True)
    if not base.exists():
        flyweight.convert(options.model, base, dtype="bf16")
    if not tuned.exists():
        fine_tune(base, options.text, tuned, options.steps)


if __name__ == "__main__":
    main()
