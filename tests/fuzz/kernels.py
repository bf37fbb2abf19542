"""Builds and runs the libFuzzer harness of the native kernels, `kernels_fuzzer.cpp`.

    python tests/fuzz/kernels.py --minutes 1
    python tests/fuzz/kernels.py --executions 50000000 --seed 1 --jobs 2 --record

It needs clang 14 or newer with libFuzzer (on Debian: clang-14, libclang-rt-14-dev) and the compiler that builds the
package. The baseline is built by clang with coverage and sanitizers, the wider instruction sets as they are shipped.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import ledger

HERE = Path(__file__).parent
ROOT, FINDINGS = HERE.parents[1], HERE / "findings"
NATIVE, BUILD, BINARY = ROOT / "native", ROOT / "build/fuzz-kernels", "kernels_fuzzer"
_RULES = ["-std=c++20", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-DFLYWEIGHT_X86"]
_SANITIZED = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]


def _clang() -> str:
    found = [
        name for version in ("", *(f"-{number}" for number in range(22, 13, -1))) if shutil.which(name := f"clang++{version}")
    ]
    if not found:
        sys.exit("there is no clang++ here, which libFuzzer belongs to")
    return found[0]


def built() -> Path:
    """The harness, compiled where its sources are newer."""
    BUILD.mkdir(parents=True, exist_ok=True)
    clang, shipped = _clang(), os.environ.get("CXX", "c++")
    cached = ["ccache"] if shutil.which("ccache") else []
    guided = [clang, *_RULES, *_SANITIZED, "-fsanitize=fuzzer-no-link"]
    optimised = [*cached, shipped, *_RULES, "-O3"]
    steps = {"astc.o": [*guided, "-c", NATIVE / "astc.cpp"], "harness.o": [*guided, "-c", HERE / "kernels_fuzzer.cpp"]}
    for source in ("kernels", "codecs"):
        steps[f"{source}_baseline.o"] = [*guided, "-DFLYWEIGHT_ISA=baseline", "-c", NATIVE / f"{source}.cpp"]
        steps[f"{source}_avx2.o"] = [*optimised, "-DFLYWEIGHT_ISA=avx2", *_AVX2, "-c", NATIVE / f"{source}.cpp"]
        steps[f"{source}_avx512.o"] = [*optimised, "-DFLYWEIGHT_ISA=avx512", *_AVX512, "-c", NATIVE / f"{source}.cpp"]
    kernels = max(path.stat().st_mtime for path in NATIVE.glob("*.[hc]pp"))
    harness = max(kernels, (HERE / "kernels_fuzzer.cpp").stat().st_mtime)

    def compiled(made: str) -> None:
        path = BUILD / made
        if not path.exists() or path.stat().st_mtime < (harness if made == "harness.o" else kernels):
            subprocess.run([*steps[made], "-o", path], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, steps))
    binary = BUILD / BINARY
    subprocess.run([clang, *_SANITIZED, "-fsanitize=fuzzer", *(BUILD / made for made in steps), "-o", binary], check=True)
    return binary


def fuzzed(given: argparse.Namespace) -> dict[str, Any]:
    binary = built()
    FINDINGS.mkdir(exist_ok=True)
    share, begun = -(-given.executions // given.jobs) if given.executions else 0, time.monotonic()

    def job(number: int) -> tuple[int, int, int, int]:
        corpus = BUILD / f"corpus-{number}"
        corpus.mkdir(exist_ok=True)
        options = {
            "seed": given.seed + number, "max_len": 4096, "len_control": 0, "rss_limit_mb": 512, "timeout": 25,
            "print_final_stats": 1, "artifact_prefix": f"{FINDINGS}/kernels-",
        }  # fmt: skip
        options |= {"runs": share} if share else {}
        options |= {"max_total_time": round(60 * given.minutes)} if given.minutes else {}
        done = subprocess.run(
            [binary, *(f"-{name}={value}" for name, value in options.items()), corpus],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(done.stderr[-3000:])
        executions = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        edges = [int(found) for found in re.findall(r"\bcov: (\d+)", done.stderr)] or [0]
        peak = re.search(r"peak_rss_mb: +(\d+)", done.stderr)
        return int(executions[1]) if executions else 0, max(edges), int(peak[1]) if peak else 0, int(done.returncode != 0)

    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(pool.map(job, range(given.jobs)))
    executions, wall = sum(one[0] for one in outcomes), time.monotonic() - begun
    edges, peak, findings = max(one[1] for one in outcomes), max(one[2] for one in outcomes), sum(one[3] for one in outcomes)
    print(f"kernels {executions:,} executions, {executions / wall:,.0f}/s, {edges} edges, peak {peak} MB, {findings} findings")
    return {"target": "kernels", "engine": "libFuzzer", "executions": executions, "seed": given.seed, "jobs": given.jobs,
            "cpu_seconds": round(wall * given.jobs), "edges": edges, "peak_mb": peak, "findings": findings}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, help="of all jobs together")
    parser.add_argument("--minutes", type=float, help="default 1, unless there are --executions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="add the run to executions.json")
    given = parser.parse_args()
    if platform.machine() != "x86_64":
        sys.exit("the harness compares the instruction sets of x86_64")
    if not given.executions and not given.minutes:
        given.minutes = 1.0
    row = fuzzed(given)
    if given.record:
        ledger.append([row])
    sys.exit(1 if row["findings"] else 0)


if __name__ == "__main__":
    main()
