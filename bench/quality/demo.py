"""Convert a real model to every format, verify, compare and run each result, and print one table of size, time and accuracy.

Every step is the command a user would type, run in its own process, so that seconds and peak memory are its own. Perplexity and
KL divergence (nats per token, against the source with f32 activations) are measured on the few hundred words of demo_text.txt:
enough to tell the rows apart, too few to compare with figures from elsewhere.

    python -m bench.quality.demo MODEL OUT [--record]     --record keeps the figures for `python -m pages demo`
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bench import record
from bench.quality.verb import Ran, flyweight
from flyweight import kernels
from flyweight.bench.harness import processor
from flyweight.evaluate import Predictor, evaluate, predictor, windows_of
from flyweight.runtime import open_model
from flyweight.runtime.model import usable_cores
from pages.demo import COLUMNS, cells
from pages.markdown import aligned

Array = np.ndarray[Any, Any]

TEXT = Path(__file__).with_name("demo_text.txt")
TOKENS, WINDOW = 512, 256
PROMPT = "Name three animals that live in the sea."


def main(model: Path, out: Path, *, keep: bool) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "flyweight", "inspect", str(model)], check=True)
    hf = out / "SmolLM2-hf"
    jobs: list[tuple[str, Path, Path, list[str]]] = [
        ("HF directory, f32", model, hf, []),
        ("HF directory, bf16", hf, out / "SmolLM2-hf-bf16", ["--dtype", "bf16"]),
        ("GGUF Q8_0", hf, out / "SmolLM2.q8_0.gguf", ["--quant", "q8_0", "--dtype", "f16"]),
        ("GGUF Q4_0", hf, out / "SmolLM2.q4_0.gguf", ["--quant", "q4_0", "--dtype", "f16"]),
        ("MLX 4-bit, group 64", hf, out / "SmolLM2-mlx-4bit", ["--to", "mlx", "--quant", "int4", "--dtype", "f16"]),
        ("MLX, repacked losslessly", model, out / "SmolLM2-mlx-exact", ["--to", "mlx"]),
        ("safetensors, bytes kept", model, out / "SmolLM2.safetensors", []),
        ("SQUIZD INT4", hf, out / "SmolLM2.int4.squizd", ["--quant", "int4", "--dtype", "bf16"]),
        ("SQUIZD TCA_TBE, bf16", hf, out / "SmolLM2.tca.squizd", ["--quant", "tca", "--dtype", "bf16"]),
        ("npy-dir INT8", hf, out / "SmolLM2-npy", ["--to", "npy-dir", "--quant", "int8"]),
    ]
    rows: list[tuple[str, Path, Ran | None, str]] = [(f"{model.name.split('.')[-2]} GGUF, the source", model, None, "")]
    for title, source, target, options in jobs:
        made = flyweight("convert", source, target, *options)
        flyweight("verify", target)
        compared = flyweight("diff", model, target, expect=(0, 1)).document
        rows.append((title, target, made, "identical" if compared["identical"] else f"{worst_snr(compared):.1f} dB at worst"))
    flyweight("convert", out / "SmolLM2.safetensors", out / "SmolLM2.again.gguf")
    if (out / "SmolLM2.again.gguf").read_bytes() != model.read_bytes():
        sys.exit("GGUF → safetensors → GGUF did not give the same file")
    print("GGUF → safetensors → GGUF: byte-identical")
    report = {
        "date": datetime.now(UTC).date().isoformat(), "processor": processor(), "kernels": kernels.active(),
        "threads": usable_cores(), "load_average": os.getloadavg()[0], "forms": list(forms(model, rows)),
    }  # fmt: skip
    if keep:
        record("demo", report)
    print(f"\n$ flyweight run {out / 'SmolLM2.q8_0.gguf'} {PROMPT!r}", flush=True)
    command = [sys.executable, "-m", "flyweight", "run", str(out / "SmolLM2.q8_0.gguf"), PROMPT, "--max-tokens", "64"]
    subprocess.run(command, check=True)
    print(f"\n{aligned(COLUMNS, map(cells, report['forms']))}")


def forms(model: Path, rows: list[tuple[str, Path, Ran | None, str]]) -> Iterator[dict[str, Any]]:
    """What each form took to make, and how it runs."""
    about = flyweight("inspect", model).document
    with open_model(model, context=WINDOW, kv="f32", int8=False) as source:
        windows = windows_of(source.tokenizer.encode(TEXT.read_text("utf-8"), special=False), WINDOW, TOKENS)
        reference = remembered(predictor(source), windows)
    for title, form, made, verdict in rows:
        files = [file for file in form.rglob("*") if file.is_file()] if form.is_dir() else [form]
        answer = flyweight("run", form, PROMPT, "--max-tokens", "32").document
        with open_model(form, context=WINDOW) as opened:
            scores = evaluate(windows, predictor(opened), reference).figures()
        yield {
            "title": title,
            "bytes": sum(file.stat().st_size for file in files),
            "bits_per_weight": made.document["bits_per_weight"] if made else 8 * about["nbytes"] / about["weights"],
            "made": {"seconds": made.seconds, "peak_bytes": made.peak_bytes} if made else None,
            "versus_source": verdict,
            "perplexity": scores["perplexity"].value,
            "kl_mean": scores["kl_mean"].value,
            "run": {key: answer[key] for key in ("decode_tokens_per_s", "load_ms", "peak_rss")},
        }


def remembered(predict: Predictor, windows: Array) -> Predictor:
    """What a model predicts for these windows, computed once for all forms."""
    held = {window.tobytes(): list(predict(window)) for window in windows}
    return lambda window: iter(held[window.tobytes()])


def worst_snr(document: Any) -> float:
    return float(min(t["snr_db"] for t in document["tensors"] if t["snr_db"] is not None))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--record", action="store_true", help="keep the figures, for `python -m pages demo`")
    given = parser.parse_args()
    main(given.model, given.out, keep=given.record)
