"""Benchmarks of running models, each in its own process: time to load and to the first token, memory, tokens per second.

    load          process start → ready to take tokens, ms
    first token   process start → the first token that answers a short prompt, ms
    private       memory that no other process shares, once loaded, MB (USS, on Linux): also pages of a mapped file, once read
    decode        128 tokens, each from the one before, tokens/s
    prefill       512 tokens at once, tokens/s
    own           memory of its own after all this, MB: what is written, not what a file could give again

A contender is a Python and a program for it. The program defines `load(model, threads)`, which gives an engine with
`encode(text)`, `feed(ids)`, `best()` (the likeliest token after what was fed) and `reset()`; PROBE runs the same steps on each.
Times are counted from the moment before the process is started, so an interpreter and its imports are part of them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyweight.bench.harness import rate, verdict

FIGURES = {"load": "ms", "first token": "ms", "private": "MB", "decode": "tokens/s", "prefill": "tokens/s", "own": "MB"}

FLYWEIGHT = """
def load(model, threads):
    from flyweight.runtime import open_model

    class Engine:
        def __init__(self):
            self.model = open_model(model, threads=threads, allow_ungated=True)
            self.cache = self.model.cache()
            self.logits = None

        def encode(self, text):
            return self.model.tokenizer.encode(text)

        def feed(self, ids):
            self.logits = self.model.decoder.forward(ids, self.cache, out=self.logits)

        def best(self):
            return int(self.logits[-1].argmax())

        def reset(self):
            self.cache.truncate(0)

    return Engine()
"""

DECODE, PREFILL = 128, 512

MEMORY = r"""
import json, re, sys, time

def memory(kind):
    try:
        sizes = re.findall(rf"{kind}: +(\d+) kB", open("/proc/self/smaps_rollup").read())
        return sum(map(int, sizes)) * 1024 / 1e6
    except OSError:
        return None
"""

PROBE = (
    MEMORY
    + r"""
TEXT = "The sky is blue because the light of the sun"

def main(model, started, threads, decode, prefill):
    engine = load(model, int(threads))
    figures = {"load": 1e3 * (time.time() - float(started)), "private": memory(r"Private_\w+")}
    ids = list(engine.encode(TEXT))
    engine.feed(ids)
    token = engine.best()
    figures["first token"] = 1e3 * (time.time() - float(started))
    begun = time.perf_counter()
    for _ in range(decode):
        engine.feed([token])
        token = engine.best()
    figures["decode"] = decode / (time.perf_counter() - begun)
    engine.reset()
    many = (ids * prefill)[:prefill]
    begun = time.perf_counter()
    engine.feed(many)
    engine.best()
    figures["prefill"] = prefill / (time.perf_counter() - begun)
    figures["own"] = memory("Private_Dirty")
    print(json.dumps(figures))

main(*sys.argv[1:4], *map(int, sys.argv[4:]))
"""
)

Spread = dict[str, float]


@dataclass(frozen=True)
class Contender:
    model: Path
    program: str = FLYWEIGHT
    python: str = sys.executable
    probe: str = PROBE

    def run(self, threads: int) -> dict[str, float | None]:
        """The figures of one process."""
        command = [
            self.python,
            "-c",
            self.program + self.probe,
            str(self.model),
            repr(time.time()),
            *map(str, (threads, DECODE, PREFILL)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  programs of ours and of the benches
        if done.returncode:
            raise RuntimeError(f"{self.python} on {self.model}: {done.stderr.strip()[-2000:]}")
        figures: dict[str, float | None] = json.loads(done.stdout.splitlines()[-1])
        return figures


def compare(
    contenders: Mapping[str, Contender], runs: int, threads: int, began: Callable[[str], object] = lambda _: None
) -> dict[str, dict[str, Spread]]:
    """Figure → contender → median, min and max; the processes of all contenders in turn."""
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(runs):
        for who, contender in contenders.items():
            began(who)
            for name, value in contender.run(threads).items():
                if value is not None:
                    taken.setdefault(name, {}).setdefault(who, []).append(value)
    return {name: {who: spread(values) for who, values in runs_of.items()} for name, runs_of in taken.items()}


def spread(values: Iterable[float]) -> Spread:
    measured = list(values)
    return {"median": statistics.median(measured), "min": min(measured), "max": max(measured)}


def row(name: str, unit: str, ours: str, figures: Mapping[str, Spread], target: str = "") -> dict[str, Any]:
    """A result as the harness writes them; ratios are ours over each other contender, also where less is better."""
    median = figures[ours]["median"]
    ratios = {who: median / other["median"] for who, other in figures.items() if who != ours}
    judged = verdict(target, median, ratios, {})
    return {
        "name": name,
        "unit": unit,
        "ours": ours,
        "figures": dict(figures),
        "ratios": ratios,
        "target": target,
        "verdict": judged,
    }


def digits_of(unit: str) -> int:
    """How many digits after the point say something: ratios are small numbers."""
    return 2 if unit == "×" else 0


def show(result: Mapping[str, Any]) -> str:
    """A result for people."""

    def figure(who: str) -> str:
        return rate(result["figures"][who], digits_of(result["unit"])).strip()

    beside = "".join(f"  {ratio:.2f}× {who} {figure(who)}" for who, ratio in result["ratios"].items())
    goal = f"  ({result['verdict']}: {result['target']})" if result["target"] else ""
    return f"{result['name']:34}{figure(result['ours']):>20} {result['unit']:9}{beside}{goal}"
