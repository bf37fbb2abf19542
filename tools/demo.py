"""The main job on a real model: inspect, convert through every format, verify, compare, and one table of what it cost.

Every step is the command a user would type, run as its own process, so that seconds and peak memory are honest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


def main(model: Path, out: Path) -> None:
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
        ("GGUF, back again", out / "SmolLM2.safetensors", out / "SmolLM2.again.gguf", []),
    ]
    rows = []
    for title, source, target, options in jobs:
        made = flyweight("convert", source, target, *options)
        flyweight("verify", target)
        compared = flyweight("diff", model, target, expect=(0, 1))
        size = sum(f.stat().st_size for f in target.rglob("*") if f.is_file()) if target.is_dir() else target.stat().st_size
        rows.append((title, size, made, compared))
    if (out / "SmolLM2.again.gguf").read_bytes() != model.read_bytes():
        sys.exit("GGUF → safetensors → GGUF did not give the same file")
    print(f"\n{'':26}{'size MB':>9}{'bits/w':>8}{'rel. error':>12}{'max error':>11}{'seconds':>9}{'MB RAM':>8}  vs the source")
    for title, size, made, compared in rows:
        verdict = "identical" if compared.document["identical"] else f"{worst_snr(compared.document):.1f} dB at worst"
        report = made.document
        print(
            f"{title:26}{size / 1e6:9.1f}{report['bits_per_weight']:8.3f}{report['relative_error']:12.2e}"
            f"{report['max_error']:11.2e}{made.seconds:9.2f}{made.peak_bytes / 1e6:8.0f}  {verdict}"
        )
    print("GGUF → safetensors → GGUF: byte-identical")


def worst_snr(document: Any) -> float:
    return min(t["snr_db"] for t in document["tensors"] if t["snr_db"] is not None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
