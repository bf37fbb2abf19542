"""One fuzzing process of one target; `fuzz.py` starts it.

    python tests/fuzz/worker.py JOB.json

The job says what to do, `report` in it where the figures go. With atheris the mutations are guided by the coverage of
Flyweight's own modules; without it they start from seeds and corpus alone. A finding is kept and the run goes on, so that one
of them does not hide the others; a signal ends the process, and the input is then what libFuzzer wrote down.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import sys
import time
import traceback
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)
    sys.path.insert(0, str(Path(__file__).parents[1]))

INSTRUMENTED = [
    *(f"flyweight.{name}" for name in ("containers", "codecs", "foundation", "models", "sources")),
    *(f"flyweight.pipeline.{name}" for name in ("plan", "planning", "recipe")),
    "flyweight.deltas.wdelta_file",
    "flyweight.deltas.file_patch",
    "flyweight.checkpoint.overlay",
    "flyweight.targets.ane.records",
    "flyweight.runtime.text.chat_template",
    "flyweight.runtime.text.tokenizer",
]
MOST_FINDINGS = 20
LONGEST = 1 << 16


class Run:
    """Executes inputs, counts, and keeps what breaks a promise."""

    def __init__(self, job: dict[str, Any]) -> None:
        from fuzz import oracle, targets

        self.job, self.target, self.limited = job, targets.TARGETS[job["target"]], oracle.limited
        self.executions, self.slowest, self.codes = 0, 0.0, Counter[str]()
        self.findings: dict[str, str] = {}
        self.ends, self.cpu = time.monotonic() + (job.get("seconds") or math.inf), time.process_time()

    def __call__(self, raw: bytes) -> None:
        from fuzz.framing import unpack

        given = unpack(raw) if raw else unpack(b"\x01")
        begun = time.thread_time()
        try:
            with self.limited(given.nbytes):
                self.codes[self.target(given)] += 1
        except BaseException as error:
            self.keep(raw, error)
            if not isinstance(error, Exception) or len(self.findings) >= MOST_FINDINGS:
                self.report()
                raise
        self.slowest = max(self.slowest, time.thread_time() - begun)
        self.executions += 1
        if self.executions % 256 == 0 or self.executions == self.job["executions"]:
            self.report()
            if time.monotonic() > self.ends:
                os._exit(0)

    def keep(self, raw: bytes, error: BaseException) -> None:
        """One input for each kind of failure."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        if kind not in self.findings:
            path = Path(self.job["findings"]) / f"{self.job['target']}-{sha256(raw).hexdigest()[:12]}"
            path.write_bytes(raw)
            path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))
            self.findings[kind] = path.name

    def report(self) -> None:
        figures = {
            "executions": self.executions,
            "slowest_ms": round(1e3 * self.slowest, 1),
            "cpu_seconds": round(time.process_time() - self.cpu, 1),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "codes": dict(self.codes.most_common(12)),
            "findings": self.findings,
        }
        written = Path(self.job["report"] + ".new")
        written.write_text(json.dumps(figures))
        written.rename(self.job["report"])


def bounded() -> None:
    """No execution can make the process larger than this, whatever it asks for."""
    from fuzz.oracle import MAX_PROCESS_BYTES

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MAX_PROCESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def from_sources() -> None:
    """Import Flyweight as plain files: what an editable installation loads in its own way, atheris cannot instrument."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
    sys.path.insert(1, str(Path(__file__).parents[2] / "src"))


def guided(job: dict[str, Any]) -> None:
    import atheris

    from_sources()
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz import targets  # noqa: F401
    from fuzz.framing import pack, unpack
    from fuzz.mutators import bundles
    from fuzz.seeds import seeds

    run, donors, rng = Run(job), seeds(job["target"]), random.Random()

    def mutator(raw: bytes, longest: int, seed: int) -> bytes:
        rng.seed(seed)
        given = unpack(raw) if raw else unpack(b"\x01")
        if given.files and rng.randrange(8) == 0:
            name = rng.choice(list(given.files))
            given = given._replace(files={**given.files, name: atheris.Mutate(given.files[name], longest)})
        else:
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                given = bundles.mutate(rng, given, rng.choice(donors))
        return pack(given.files, is_directory=given.is_directory)[:longest]

    def crossover(one: bytes, other: bytes, longest: int, seed: int) -> bytes:
        rng.seed(seed)
        if not one or not other:
            return one or other
        given = bundles.spliced(rng, unpack(one), unpack(other))
        return pack(given.files, is_directory=given.is_directory)[:longest]

    bounded()
    options = {
        "runs": job["executions"], "seed": job["seed"], "max_len": LONGEST, "len_control": 0, "rss_limit_mb": 2048,
        "timeout": 60, "artifact_prefix": f"{job['findings']}/{job['target']}-", "print_final_stats": 1, "verbosity": 1,
    }  # fmt: skip
    arguments = [sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), job["corpus"]]
    atheris.Setup(arguments, run, custom_mutator=mutator, custom_crossover=crossover)
    atheris.Fuzz()


def unguided(job: dict[str, Any]) -> None:
    from fuzz.framing import pack, unpack
    from fuzz.mutators import bundles

    run, rng = Run(job), random.Random(job["seed"])
    known = [unpack(path.read_bytes()) for path in sorted(Path(job["corpus"]).iterdir())]
    bounded()
    for number in range(job["executions"]):
        given = known[number] if number < len(known) else rng.choice(known)
        for _ in range(rng.choice((1, 1, 1, 2, 4)) if number >= len(known) else 0):
            given = bundles.mutate(rng, given, rng.choice(known))
        run(pack(given.files, is_directory=given.is_directory))


if __name__ == "__main__":
    job_given = json.loads(Path(sys.argv[1]).read_text())
    (guided if job_given["guided"] else unguided)(job_given)
