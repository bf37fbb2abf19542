"""Convert a real model to every format, verify, compare and run each result, and print one table of size, time and accuracy.
Then store a fine-tune of it as a delta, rebuild it, and run it from base and delta.

Every step is the command a user would type, run in its own process, so that seconds and peak memory are its own. Perplexity and
KL divergence (nats per token, against the source with f32 activations) are measured on the few hundred words of demo_text.txt:
enough to tell the rows apart, too few to compare with figures from elsewhere.

    python -m bench.quality.demo MODEL OUT [--record]     --record keeps the figures for `python -m pages demo`
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import record
from bench.quality.verb import Ran, flyweight
from flyweight import kernels
from flyweight.bench.harness import processor
from flyweight.checkpoint import open_checkpoint
from flyweight.evaluate import Predictor, evaluate, predictor, windows_of
from flyweight.runtime import open_model
from flyweight.runtime.model import usable_cores
from pages.demo import COLUMNS, cells
from pages.markdown import aligned

Array = np.ndarray[Any, Any]

TEXT = Path(__file__).with_name("demo_text.txt")
TOKENS, WINDOW = 512, 256
CALIBRATED = "6144"
"""Tokens of the text that comes with Flyweight: four for each column of the widest matrix."""
PROMPT = "Name three animals that live in the sea."
STEP = 3e-4
"""How far a weight of the fine-tune moves, as a standard deviation."""

PIECE = 1 << 20


class Row(NamedTuple):
    title: str
    form: Path
    bits_per_weight: float
    made: Ran | None
    versus_source: str


def main(model: Path, out: Path, *, keep: bool) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "flyweight", "inspect", str(model)], check=True)
    hf = out / "SmolLM2-hf"
    statistics = out / "SmolLM2.stats"
    jobs: list[tuple[str, Path, Path, list[str]]] = [
        ("HF directory, f32", model, hf, []),
        ("HF directory, bf16", hf, out / "SmolLM2-hf-bf16", ["--dtype", "bf16"]),
        ("GGUF Q8_0", hf, out / "SmolLM2.q8_0.gguf", ["--quant", "q8_0", "--dtype", "f16"]),
        ("GGUF Q4_0", hf, out / "SmolLM2.q4_0.gguf", ["--quant", "q4_0", "--dtype", "f16"]),
        ("GGUF, types chosen for 90 MB", hf, out / "SmolLM2.90mb.gguf", ["--target-size", "90M", "--stats", str(statistics)]),
        ("MLX 4-bit, group 64", hf, out / "SmolLM2-mlx-4bit", ["--to", "mlx", "--quant", "int4", "--dtype", "f16"]),
        ("MLX, repacked losslessly", model, out / "SmolLM2-mlx-exact", ["--to", "mlx"]),
        ("safetensors, bytes kept", model, out / "SmolLM2.safetensors", []),
        ("SQUIZD INT4", hf, out / "SmolLM2.int4.squizd", ["--quant", "int4", "--dtype", "bf16"]),
        ("SQUIZD TCA_TBE, bf16", hf, out / "SmolLM2.tca.squizd", ["--quant", "tca", "--dtype", "bf16"]),
        ("npy-dir INT8", hf, out / "SmolLM2-npy", ["--to", "npy-dir", "--quant", "int8"]),
        ("UQFF AFQ4", hf, out / "SmolLM2-uqff", ["--to", "uqff", "--quant", "afq4"]),
    ]
    about = flyweight("inspect", model).document
    weights: int = about["weights"]
    rows = [Row(f"{model.name.split('.')[-2]} GGUF, the source", model, 8 * about["nbytes"] / weights, None, "")]
    for title, source, target, options in jobs:
        if str(statistics) in options and not statistics.exists():
            flyweight("calibrate", source, "-o", statistics, "--gram", "--tokens", CALIBRATED)
        made = flyweight("convert", source, target, *options)
        flyweight("verify", target)
        rows.append(Row(title, target, made.document["bits_per_weight"], made, versus(model, target)))
    flyweight("convert", out / "SmolLM2.safetensors", out / "SmolLM2.again.gguf")
    if not filecmp.cmp(out / "SmolLM2.again.gguf", model, shallow=False):
        sys.exit("GGUF → safetensors → GGUF did not give the same file")
    print("GGUF → safetensors → GGUF: byte-identical")
    rows += a_delta(model, out / "SmolLM2-hf-bf16", out, weights)
    report = {
        "date": datetime.now(UTC).date().isoformat(), "processor": processor(), "kernels": kernels.active(),
        "threads": usable_cores(), "load_average": os.getloadavg()[0], "forms": list(forms(model, rows)),
    }  # fmt: skip
    if keep:
        record("demo", report)
    print(f"\n$ flyweight run {out / 'SmolLM2.q8_0.gguf'} {PROMPT!r}", flush=True)
    command = [sys.executable, "-m", "flyweight", "run", str(out / "SmolLM2.q8_0.gguf"), PROMPT, "--max-tokens", "64"]
    subprocess.run(command, check=True)
    print(f"\nThe fine-tune is the bf16 directory with N(0, {STEP:g}) added to every weight, from a fixed seed.")
    print(f"\n{aligned(COLUMNS, map(cells, report['forms']))}")


def a_delta(model: Path, base: Path, out: Path, weights: int) -> list[Row]:
    """A fine-tune, and the same as a delta: made, applied and compared."""
    tuned, delta, again = out / "SmolLM2-tuned", out / "SmolLM2-tuned.wdelta", out / "SmolLM2-tuned-again"
    fine_tune(base, tuned)
    made = flyweight("delta", "create", base, tuned, delta)
    flyweight("delta", "apply", base, delta, again)
    if any(not filecmp.cmp(again / file.name, file, shallow=False) for file in tuned.iterdir()):
        sys.exit("base + delta did not give the fine-tune")
    print("base + delta: byte-identical to the fine-tune")
    bits = 8 * made.document["nbytes"] / weights
    return [
        Row("a fine-tune, bf16", tuned, 16.0, None, versus(model, tuned)),
        Row("the fine-tune, as a delta", delta, bits, made, f"{versus(tuned, delta)} to the fine-tune"),
    ]


def fine_tune(source: Path, out: Path) -> None:
    """What stands for training: every weight moves a little, at random but always the same way. In pieces, because what a
    command uses is counted from what this process has used."""
    shutil.copytree(source, out)
    with open_checkpoint(out) as checkpoint:
        entries = list(checkpoint.manifest.entries.values())
    rng = np.random.default_rng(0)
    for entry in entries:
        place, dtype = entry.extents["data"], entry.spec.dtype.storage
        with (out / place.file).open("r+b") as file:
            for at in range(place.offset, place.end, PIECE):
                file.seek(at)
                weights = np.frombuffer(file.read(min(PIECE, place.end - at)), dtype).astype(np.float32)
                weights += STEP * rng.standard_normal(len(weights), np.float32)
                file.seek(at)
                file.write(weights.astype(dtype).tobytes())


def forms(model: Path, rows: list[Row]) -> Iterator[dict[str, Any]]:
    """What each form took to make, and how it runs."""
    with open_model(model, context=WINDOW, kv="f32", int8=False) as source:
        windows = windows_of(source.tokenizer.encode(TEXT.read_text("utf-8"), special=False), WINDOW, TOKENS)
        reference = remembered(predictor(source), windows)
    for title, form, bits, made, versus_source in rows:
        files = [file for file in form.rglob("*") if file.is_file()] if form.is_dir() else [form]
        answer = flyweight("run", form, PROMPT, "--max-tokens", "32").document
        with open_model(form, context=WINDOW) as opened:
            scores = evaluate(windows, predictor(opened), reference).figures()
        yield {
            "title": title,
            "bytes": sum(file.stat().st_size for file in files),
            "bits_per_weight": bits,
            "made": {"seconds": made.seconds, "peak_bytes": made.peak_bytes} if made else None,
            "versus_source": versus_source,
            "perplexity": scores["perplexity"].value,
            "kl_mean": scores["kl_mean"].value,
            "run": {key: answer[key] for key in ("decode_tokens_per_s", "load_ms", "peak_rss")},
        }


def remembered(predict: Predictor, windows: Array) -> Predictor:
    """What a model predicts for these windows, computed once for all forms."""
    held = {window.tobytes(): list(predict(window)) for window in windows}
    return lambda window: iter(held[window.tobytes()])


def versus(a: Path, b: Path) -> str:
    compared = flyweight("diff", a, b, expect=(0, 1)).document
    if compared["identical"]:
        return "identical"
    return f"{min(t['snr_db'] for t in compared['tensors'] if t['snr_db'] is not None):.1f} dB at worst"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--record", action="store_true", help="keep the figures, for `python -m pages demo`")
    given = parser.parse_args()
    main(given.model, given.out, keep=given.record)
