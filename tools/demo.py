"""Convert a real model to every format, verify, compare and run each result, and print one table of size, time and accuracy.

Every step is the command a user would type, run in its own process, so that seconds and peak memory are its own. Perplexity and
KL divergence (nats per token, against the source with f32 activations) are measured on the few hundred words of demo_text.txt:
enough to tell the rows apart, too few to compare with figures from elsewhere.

    python tools/demo.py MODEL OUT [--update README.md]     --update writes the table into a page, between its two marks
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.evaluate import Predictor, evaluate, predictor, windows_of
from flyweight.runtime import open_model

Array = np.ndarray[Any, Any]

TEXT = Path(__file__).with_name("demo_text.txt")
TOKENS, WINDOW = 512, 256
PROMPT = "Name three animals that live in the sea."
COLUMNS = (
    "",
    "size MB",
    "bits/weight",
    "convert s",
    "RAM MB",
    "vs the source",
    "perplexity",
    "KL",
    "tokens/s",
    "load ms",
    "RAM MB",
)
MARKS = "<!-- demo -->\n", "<!-- /demo -->\n"


@dataclass(frozen=True)
class Ran:
    document: Any
    seconds: float
    peak_bytes: int
    code: int


def flyweight(*arguments: str | Path, expect: tuple[int, ...] = (0,)) -> Ran:
    """Run a verb with --json in its own process."""
    command = [sys.executable, "-m", "flyweight", *map(str, arguments), "--json"]
    print("$ flyweight", *map(str, arguments), flush=True)
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode not in expect:
        sys.exit(f"exit {process.returncode}")
    return Ran(json.loads(output), seconds, usage.ru_maxrss * 1024, process.returncode)


def main(model: Path, out: Path, page: Path | None) -> None:
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
    lines = list(table(model, rows))
    if page is not None:
        update(page, lines)
    print(f"\n$ flyweight run {out / 'SmolLM2.q8_0.gguf'} {PROMPT!r}", flush=True)
    command = [sys.executable, "-m", "flyweight", "run", str(out / "SmolLM2.q8_0.gguf"), PROMPT, "--max-tokens", "64"]
    subprocess.run(command, check=True)
    widths = [max(map(len, column)) for column in zip(COLUMNS, *lines, strict=True)]
    print()
    for line in (COLUMNS, *lines):
        print(
            "  ".join(
                cell.ljust(width) if at in (0, 5) else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
        )


def update(page: Path, lines: list[tuple[str, ...]]) -> None:
    """Put the table between the marks of a page, with the machine and the date."""
    where = f"{machine()}, two threads, kernels {kernels.active()}, {datetime.datetime.now(datetime.UTC).date()}."
    rows = [COLUMNS, ("---",) * len(COLUMNS), *lines]
    made = "\n".join(["", where, "", *(f"| {' | '.join(row)} |" for row in rows), "", ""])
    begin, rest = page.read_text("utf-8").split(MARKS[0])
    page.write_text(begin + MARKS[0] + made + MARKS[1] + rest.split(MARKS[1])[1], "utf-8")


def machine() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    return found[1] if found else "an unnamed processor"


def table(model: Path, rows: list[tuple[str, Path, Ran | None, str]]) -> Iterator[tuple[str, ...]]:
    """What each form took to make, and how it runs."""
    about = flyweight("inspect", model).document
    with open_model(model, context=WINDOW, kv="f32", int8=False) as source:
        windows = windows_of(source.tokenizer.encode(TEXT.read_text("utf-8"), special=False), WINDOW, TOKENS)
        reference = remembered(predictor(source), windows)
    for title, form, made, verdict in rows:
        size = sum(f.stat().st_size for f in form.rglob("*") if f.is_file()) if form.is_dir() else form.stat().st_size
        bits = made.document["bits_per_weight"] if made else 8 * about["nbytes"] / about["weights"]
        making = (f"{made.seconds:.2f}", f"{made.peak_bytes / 1e6:.0f}") if made else ("", "")
        answer = flyweight("run", form, PROMPT, "--max-tokens", "32").document
        with open_model(form, context=WINDOW) as opened:
            scores = evaluate(windows, predictor(opened), reference).figures()
        quality = f"{scores['perplexity'].value:.2f}", f"{scores['kl_mean'].value:.4f}"
        running = f"{answer['decode_tokens_per_s']:.1f}", f"{answer['load_ms']:.0f}", f"{answer['peak_rss'] / 1e6:.0f}"
        yield title, f"{size / 1e6:.1f}", f"{bits:.3f}", *making, verdict, *quality, *running


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
    parser.add_argument("--update", type=Path, metavar="PAGE")
    given = parser.parse_args()
    main(given.model, given.out, given.update)
