"""How fast blocks become floats, beside gguf-py, in one process on one thread.

    python bench/decode.py [--json FILE] [--megabytes N ...] [--runs N]

Rates are megabytes of f32 output per second; each figure is the median of the runs, with the
slowest and fastest beside it. The runs of all contenders are interleaved, so that a busy machine
slows them alike. flyweight fills a buffer it is given, as its pipeline does; gguf-py's interface
makes a new array. `copy` is np.copyto of the same output: what memory allows.

Two sizes: 8 MB is the slab the pipeline decodes at a time, which stays in cache for whoever uses it next; 64 MB is
a whole matrix, where writing to memory is the bound and the copy is the figure to compare with.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs import ggml

try:
    import gguf
except ModuleNotFoundError:
    sys.exit("bench/decode.py measures beside gguf-py: install gguf==0.19.0 in this interpreter, or run `make bench`")

TYPES = ("q4_0", "q8_0", "q4_k", "q6_k")
TARGET = 20.0
COLUMNS = 4096
Array = np.ndarray[Any, Any]


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        import platform

        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ordinary_blocks(name: str, rows: int) -> Array:
    """Rows of random codes with scales as weights have them. (rows, bytes of a row)"""
    size, nbytes = kernels.BLOCKS[name]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (rows * COLUMNS // size, nbytes), dtype=np.uint8)
    for at, kind in next(codec for codec in ggml.CODECS if codec.name == name).scales:
        scales = rng.uniform(1e-4, 1e-2, (len(blocks), 1)).astype(kind)
        blocks[:, at : at + scales.itemsize] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def contenders(name: str, megabytes: int) -> tuple[int, dict[str, Callable[[], object]]]:
    """Output bytes, and what to time: one matrix, the same for everybody, decoded whole."""
    size, nbytes = kernels.BLOCKS[name]
    rows = ordinary_blocks(name, megabytes * 1_000_000 // (4 * COLUMNS))
    blocks = rows.reshape(-1, nbytes)
    kind = gguf.GGMLQuantizationType[name.upper()]
    ours = np.zeros((len(blocks), size), np.float32)
    other = np.zeros_like(ours)
    decode = getattr(kernels, f"decode_{name}")
    decode(blocks, ours)
    if not np.array_equal(ours.ravel(), gguf.quants.dequantize(rows, kind).ravel()):
        sys.exit(f"{name}: our values differ from gguf-py's; a speed would mean nothing")
    return ours.nbytes, {
        "flyweight": lambda: decode(blocks, ours),
        "gguf-py": lambda: gguf.quants.dequantize(rows, kind),
        "copy": lambda: np.copyto(other, ours),
    }


def measure(name: str, megabytes: int, runs: int) -> dict[str, object]:
    nbytes, work = contenders(name, megabytes)
    taken: dict[str, list[float]] = {who: [] for who in work}
    for _ in range(runs):
        for who, job in work.items():
            taken[who].append(nbytes / seconds(job) / 1e6)
    result: dict[str, object] = {"type": name, "output_bytes": nbytes}
    for who, rates in taken.items():
        result[who] = {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}
    result["ratio"] = statistics.median(taken["flyweight"]) / statistics.median(taken["gguf-py"])
    return result


def cell(figures: dict[str, float]) -> str:
    return f"{figures['median']:7.0f} [{figures['min']:.0f}–{figures['max']:.0f}]".ljust(22)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[8, 64], help="f32 output per run (default 8 and 64)")
    parser.add_argument("--runs", type=int, default=11, help="runs per contender (default 11)")
    options = parser.parse_args()

    report: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "kernels": kernels.active(),
        "numpy": np.__version__,
        "runs": options.runs,
        "unit": "MB/s of f32 output",
        "target_ratio": TARGET,
    }
    print(f"{report['processor']}, kernels {report['kernels']}, one thread, median of {options.runs} [min–max], MB/s of f32\n")
    print(f"{'type':6} {'output':>6}  {'flyweight':22} {'gguf-py':22} {'copy':22} ratio to gguf-py (target {TARGET:.0f})")
    results = []
    for megabytes in options.megabytes:
        for name in TYPES:
            results.append(result := measure(name, megabytes, options.runs))
            figures = " ".join(cell(result[who]) for who in ("flyweight", "gguf-py", "copy"))
            print(f"{name:6} {megabytes:3} MB  {figures} {result['ratio']:.1f}×", flush=True)
    report["results"] = results
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
