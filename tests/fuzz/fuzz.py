"""Fuzzing from the command line: containers and the readers below them, guided by coverage.

    python tests/fuzz/fuzz.py gguf --executions 2000000 --seed 1 --jobs 2 --record
    python tests/fuzz/fuzz.py all --minutes 0.2
    python tests/fuzz/fuzz.py squizd --flips --jobs 2 --record
    python tests/fuzz/fuzz.py gguf --replay tests/fuzz/findings/gguf-0123456789ab

Every execution breaks a small model and reads it: only FlyweightError may come out of it, in bounded time and memory, and
what is accepted keeps every promise of `oracle`. Exit 1 if one does not; its input is kept in `findings`, and belongs into
`corpus/<target>` once it is understood: the tests replay what is there.

`--grow` adds to the corpus what reaches code that nothing in it reaches. `--record` adds the run to executions.json, from which
docs/testing.md is made. `--flips` flips every bit of a SQUIZD file of each kind, one at a time; each must be found, and in a
tensor's block in that tensor.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import ledger
from fuzz.framing import pack, unpack

HERE = Path(__file__).parent
CORPUS, FINDINGS = HERE / "corpus", HERE / "findings"
MOST_RESTARTS = 5
_COVERAGE = re.compile(r"\bcov: (\d+)")


def engine() -> str:
    return "atheris" if find_spec("atheris") else "unguided"


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="flyweight-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def prepared(target: str, folder: Path) -> None:
    """A corpus to start from: the seeds made by code, and what the repository has."""
    from fuzz.seeds import seeds

    folder.mkdir(parents=True)
    for given in seeds(target):
        raw = pack(given.files, is_directory=given.is_directory)
        (folder / sha256(raw).hexdigest()[:16]).write_bytes(raw)
    for path in sorted((CORPUS / target).glob("*")):
        (folder / path.name).write_bytes(path.read_bytes())


def worked(target: str, executions: int, seed: int, seconds: float | None, folder: Path) -> dict[str, Any]:
    """One job: a worker, and another one in its place while it ends by a signal."""
    corpus, total = folder / "corpus", {"executions": 0, "slowest_ms": 0.0, "cpu_seconds": 0.0, "peak_bytes": 0, "edges": 0}
    prepared(target, corpus)
    findings, codes, ends = dict[str, str](), Counter[str](), time.monotonic() + seconds if seconds else None
    for attempt in range(MOST_RESTARTS):
        left = executions - total["executions"]
        seconds = ends - time.monotonic() if ends else None
        if left <= 0 or (seconds is not None and seconds < 0.5):
            break
        report, log, job = folder / "report.json", folder / f"log{attempt}.txt", folder / "job.json"
        report.unlink(missing_ok=True)
        job.write_text(
            json.dumps(
                {
                    "target": target, "executions": left, "seed": seed + 1000 * attempt, "seconds": seconds,
                    "corpus": str(corpus), "findings": str(FINDINGS), "report": str(report), "guided": engine() == "atheris",
                }
            )
        )  # fmt: skip
        with log.open("wb") as output:
            done = subprocess.run([sys.executable, HERE / "worker.py", job], stdout=output, stderr=output, check=False)
        said = log.read_text("utf-8", "replace")
        if report.exists():
            figures = json.loads(report.read_text())
            total = {key: (total[key] + figures[key] if key in ("executions", "cpu_seconds") else max(total[key], figures[key]))
                     for key in total if key != "edges"} | {"edges": total["edges"]}  # fmt: skip
            findings |= figures["findings"]
            codes.update(figures["codes"])
        total["edges"] = max(total["edges"], *map(int, _COVERAGE.findall(said) or ["0"]))
        if done.returncode == 0:
            break
        if not (report.exists() and findings and "Python exception" in said):
            path = FINDINGS / f"{target}-died-{seed}-{attempt}.txt"
            path.write_text(said[-20_000:])
            findings[f"the process ended with {done.returncode}"] = path.name
    return total | {"codes": dict(codes), "findings": findings}


def fuzzed(target: str, given: argparse.Namespace) -> dict[str, Any]:
    FINDINGS.mkdir(exist_ok=True)
    share, seconds = -(-given.executions // given.jobs), 60 * given.minutes if given.minutes else None
    begun = time.monotonic()
    with scratch() as folder, ThreadPoolExecutor(given.jobs) as pool:
        places = [Path(folder) / str(job) for job in range(given.jobs)]
        tasks = [pool.submit(worked, target, share, given.seed + job, seconds, place) for job, place in enumerate(places)]
        outcomes = [task.result() for task in tasks]
        if given.grow:
            from fuzz import corpus

            found = [unpack(path.read_bytes()) for place in places for path in sorted((place / "corpus").iterdir())]
            corpus.grow(target, found, CORPUS / target)
    wall = time.monotonic() - begun
    findings = {kind: name for one in outcomes for kind, name in one["findings"].items()}
    executions, cpu = sum(one["executions"] for one in outcomes), sum(one["cpu_seconds"] for one in outcomes)
    slowest, peak = max(one["slowest_ms"] for one in outcomes), max(one["peak_bytes"] for one in outcomes)
    edges = max(one["edges"] for one in outcomes)
    print(
        f"{target:<18} {executions:>10,} executions  {executions / max(cpu, 1e-9):>7,.0f}/s of CPU  "
        f"{executions / wall:>7,.0f}/s  {edges or '-':>6} edges  slowest {slowest:,.0f} ms  peak {peak >> 20} MB  "
        f"{len(findings)} findings",
        flush=True,
    )
    if given.codes:
        codes: Counter[str] = sum((Counter(one["codes"]) for one in outcomes), Counter())
        print("\n".join(f"{count:>12,}  {code}" for code, count in codes.most_common(12)))
    for kind, name in findings.items():
        print(f"    {kind}: {FINDINGS / name}")
    return {
        "target": target, "engine": engine(), "executions": executions, "seed": given.seed, "jobs": given.jobs,
        "cpu_seconds": round(cpu), "edges": edges or None, "slowest_ms": slowest, "peak_mb": peak >> 20,
        "findings": len(findings),
    }  # fmt: skip


def flips(number: int) -> tuple[int, float]:
    """Every bit of one SQUIZD file, one at a time. Returns how many and the slowest, in seconds."""
    from flyweight.containers.squizd.squizd_file import Squizd
    from fuzz.oracle import promise
    from fuzz.seeds import SQUIZD_WHOLE
    from support.squizd_files import bundle, directory_of

    raw = SQUIZD_WHOLE[number]
    tensors = directory_of(raw)["tensors"]
    owners = {at: one["name"] for one in tensors for at in range(one["offset"], one["offset"] + one["length"])}
    flipped, slowest = bytearray(raw), 0.0
    for bit in range(8 * len(raw)):
        at, begun = bit // 8, time.thread_time()
        flipped[at] ^= 1 << bit % 8
        found = [one for one in Squizd().audit(bundle(bytes(flipped))) if one.level == "error" or at not in owners]
        flipped[at] ^= 1 << bit % 8
        promise(bool(found), f"bit {bit % 8} of byte {at} was not found")
        promise(at not in owners or owners[at] in {one.tensor for one in found}, f"byte {at} was not located")
        slowest = max(slowest, time.thread_time() - begun)
    return 8 * len(raw), slowest


def flipped(jobs: int) -> dict[str, Any]:
    from fuzz.seeds import SQUIZD_WHOLE

    begun = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(flips, range(len(SQUIZD_WHOLE))))
    bits = sum(count for count, _ in outcomes)
    print(f"all {bits:,} bits of {len(outcomes)} files flipped and found in {time.monotonic() - begun:.0f} s")
    return {
        "target": "squizd_flips", "engine": "exhaustive", "executions": bits, "seed": None, "jobs": jobs,
        "cpu_seconds": round(time.monotonic() - begun), "slowest_ms": round(1e3 * max(slowest for _, slowest in outcomes), 1),
        "findings": 0,
    }  # fmt: skip


def replayed(target: str, paths: list[Path]) -> None:
    from fuzz.oracle import limited
    from fuzz.targets import TARGETS

    for path in paths:
        given = unpack(path.read_bytes())
        with limited(given.nbytes):
            print(f"{path.name}: {TARGETS[target](given)}")


def main() -> None:
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["all", *TARGETS])
    parser.add_argument("--executions", type=int, default=10**9, help="of all jobs together; default: until the time is over")
    parser.add_argument("--minutes", type=float, help="for each target; default 1, unless there are --executions")
    parser.add_argument("--seed", type=int, default=1, help="jobs take this one and those that follow")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--grow", action="store_true", help="add what reaches new code to the corpus")
    parser.add_argument("--record", action="store_true", help="add the run to executions.json")
    parser.add_argument("--codes", action="store_true", help="print what the executions ended in")
    parser.add_argument(
        "--replay", type=Path, nargs="+", metavar="INPUT", help="execute these inputs, once, and let errors out"
    )
    parser.add_argument("--flips", action="store_true", help="flip every bit of a SQUIZD file of each kind instead")
    given = parser.parse_args()
    if given.replay:
        replayed(given.target, given.replay)
        return
    if given.minutes is None and given.executions == 10**9:
        given.minutes = 1.0
    if engine() != "atheris":
        print("atheris is not installed here: mutations are not guided by coverage (`make fuzz` has it)", file=sys.stderr)
    rows = []
    if given.flips:
        rows = [flipped(given.jobs)]
    else:
        rows = [fuzzed(target, given) for target in (TARGETS if given.target == "all" else [given.target])]
    if given.record:
        ledger.append(rows)
    sys.exit(1 if any(row["findings"] for row in rows) else 0)


if __name__ == "__main__":
    main()
