"""The tiers of a model beside the usual ways to load it: from files on disk, and in the page cache, until one token is through.

    cold        from the call that loads to the first logits, ms, its files dropped from the page cache; imports are made before
    warm        the same right after, its files in the page cache; twice
    boot        from the start of the process to the first logits, ms, programs dropped from the page cache too: the first load
                after a start of the machine; once
    disk        bytes of its files
    private     memory of its own that this took, MB (Private_Dirty): what cannot be dropped and mapped again
    resident    growth of the resident set, MB (RSS): mapped pages counted
    perplexity  4 windows of 512 tokens

on SmolLM2-135M (channels permuted: bench/quality/permute.py) and on a model of the shape of Qwen2.5-1.5B. Every way has
processes of its own, all ways by turns; one that takes over a minute is run once. `first` is what its first token needs of its
files; how long the disk takes for that is measured beside it (page_cache.py). The rows of llama.cpp need --llama, a Python
with llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any

import flyweight
from bench import record
from bench.models.engines import LLAMA, MLX, TRANSFORMERS, llama_python
from bench.models.large_model import large_model
from bench.models.page_cache import BACK, back, ballast, drop, drop_everything, files_of, nbytes_of, read_ms, write_rate
from bench.quality.permute import permuted_beside
from flyweight.bench import headline, machine
from flyweight.bench.running import FLYWEIGHT, MEMORY, Contender, row, show, spread
from flyweight.checkpoint import Checkpoint
from flyweight.evaluate import evaluate, predictor, windows_of
from flyweight.foundation.manifest import Extent
from flyweight.runtime import open_model
from flyweight.runtime.model import usable_cores
from flyweight.runtime.read_ahead import joined
from flyweight.runtime.tensors import Tensors
from flyweight.tiers import TIERS, open_best, prune

PLACE = Path(".bench/tiers")
SMALL, LARGE = "SmolLM2-135M", "1.5B shape"
CONTEXT, WINDOWS = 512, 4
SLOW = 60_000
ROOM = 8 << 30
"""Memory that is left for the ways: twice what any of them takes."""
WARM_RUNS = 2
COLD_TURNS = 5
"""Of the cold loads that are held against the disk."""
BUILD_TURNS = 3

PROBE = (
    MEMORY
    + BACK
    + r"""
def main(model, started, threads, *_):
    if BACKED:
        back()
    before, begun = (memory("Private_Dirty"), memory("Rss")), time.perf_counter()
    engine = load(model, int(threads))
    engine.feed([1])
    engine.best()
    ready = 1e3 * (time.perf_counter() - begun)
    since = 1e3 * (time.time() - float(started))
    took = {"private": memory("Private_Dirty") - before[0], "resident": memory("Rss") - before[1]}
    print(json.dumps({"ready": ready, "since start": since} | took))

main(*sys.argv[1:])
"""
)
OURS = f"""
import ml_dtypes
import flyweight.codecs.affine, flyweight.codecs.raw, flyweight.containers.hf, flyweight.tiers.decision, flyweight.tiers.opening
from flyweight.runtime import open_model
{FLYWEIGHT}"""
TIERED = """
as_it_is = load

def load(model, threads):
    return as_it_is(flyweight.tiers.open_best(model, tier={tier!r}, build=False)[0], threads)
"""
BUILD = """
import json, sys
from flyweight.tiers import build
from flyweight.runtime import peak_rss
before = peak_rss()
built = build(sys.argv[1], sys.argv[2], in_place=True)
print(json.dumps({"seconds": built.seconds, "nbytes": built.nbytes, "peak": (peak_rss() - before) / 1e6}))
"""
SURPRISE = r"""
import json, sys
import numpy

def main(model, threads, held):
    logits = load(model, int(threads)).logits_of
    total = count = 0
    for window in json.load(open(held)):
        rows = numpy.asarray(logits(window[:-1]), numpy.float64)
        rows -= rows.max(axis=1, keepdims=True)
        given = rows[numpy.arange(len(rows)), window[1:]] - numpy.log(numpy.exp(rows).sum(axis=1))
        total, count = total - given.sum(), count + len(rows)
    print(float(numpy.exp(total / count)))

main(*sys.argv[1:])
"""
"""Perplexity as a program of the others, which must define `load(model, threads).logits_of(ids)`."""
EVERY_LOGIT = {
    "transformers": """
def load(model, threads):
    import torch, transformers
    torch.set_num_threads(threads)
    held = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    class Engine:
        @torch.inference_mode()
        def logits_of(self, ids):
            return held(torch.tensor([ids])).logits[0].float().numpy()

    return Engine()
""",
    "llama.cpp": """
def load(model, threads):
    import os
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import llama_cpp
    held = llama_cpp.Llama(
        model, n_ctx=512, n_batch=512, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False
    )

    class Engine:
        def logits_of(self, ids):
            held.reset()
            held.eval(ids)
            return held.scores[: len(ids)]

    return Engine()
""",
}


@dataclass(frozen=True)
class Way:
    """One way to load a model: who, from where, and for ours from which tier."""

    who: str
    form: str
    place: Path
    program: str
    python: str = sys.executable
    tier: str = ""

    @property
    def label(self) -> str:
        return f"{self.who}, {self.form}"

    @cached_property
    def files(self) -> list[Path]:
        """What its rows of the table speak of: a tier's own weights, and otherwise all but the tiers."""
        if self.tier in TIER_PLACES:
            return files_of(self.place / TIER_PLACES[self.tier])
        built = tuple(str(self.place / place) for place in TIER_PLACES.values())
        return [path for path in files_of(self.place) if not str(path).startswith(built)]

    def open(self) -> Checkpoint:
        return open_best(self.place, tier=self.tier or "auto", build=False)[0]

    def load(self, threads: int, *, backed: bool = True) -> dict[str, float | None]:
        """The figures of a process that loads it, with memory that is there unless the start itself is measured."""
        return Contender(self.place, f"{self.program}\nBACKED = {backed}\n", self.python, PROBE).run(threads)

    def reading(self, needed: Iterable[Extent]) -> dict[str, float]:
        return {f"read, {how}": ms for how, ms in read_ms(self.place, needed, PLACE / "needed.json").items()}

    def needed(self) -> list[Extent]:
        """What a first token reads of its files."""
        with self.open() as checkpoint:
            tensors = Tensors(checkpoint)
            return list(joined(sorted(share.extent for step in tensors.steps for share in tensors.shares(step))))


TIER_PLACES = {tier.name: tier.place for tier in TIERS}


# What is loaded ---------------------------------------------------------------------------------


def made(place: Path, source: Path, **how: Any) -> Path:
    if not place.exists():
        print(f"making {place}", flush=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        flyweight.convert(source, place, **how)
    return place


def small_model(gguf: Path) -> Path:
    """SmolLM2 in bf16: what is known of it is its 4-bit groups, which the permutation hides."""
    return made(PLACE / SMALL / "native", permuted_beside(gguf), dtype="bf16", to="hf")


def ways(source: Path, place: Path, peers: str, llama: str | None) -> list[Way]:
    """Every row of a model's table; what is not there yet is made."""
    found = []
    for who, program in (
        ("transformers", f"import torch\nfrom transformers import LlamaForCausalLM, Qwen2ForCausalLM\n{TRANSFORMERS}"),
        ("mlx-lm", f"import mlx_lm.utils, mlx_lm.models.llama, mlx_lm.models.qwen2\n{MLX}"),
    ):
        package = who.replace("-", "_")
        if subprocess.run([peers, "-c", f"import {package}"], capture_output=True).returncode:
            print(f"{who} is not here: measuring without it")
            continue
        found.append(Way(who, "bf16", source, program, peers))
    if any(way.who == "mlx-lm" for way in found):
        found.append(
            Way("mlx-lm", "4 bits", made(place / "mlx-4bit", source, to="mlx", quant="int4"), found[-1].program, peers)
        )
    if llama:
        program = f"import llama_cpp, numpy\n{LLAMA}"
        found.append(Way("llama.cpp", "bf16", made(place / "bf16.gguf", source), program, llama))
        found.append(Way("llama.cpp", "Q4_0", made(place / "q4_0.gguf", source, quant="q4_0"), program, llama))
    found.append(Way("flyweight", "native", source, OURS))
    for form in ("int8", "int4", "int3"):
        arrays = made(place / form, source, to="npy_dir", quant=form, allow_ungated=form == "int3")
        found.append(Way("flyweight", form, arrays, OURS + TIERED.format(tier="arrays"), tier="arrays"))
    for tier in ("finalized", "cache", "packed"):
        build(place / "int4", tier)
        found.append(Way("flyweight", tier, place / "int4", OURS + TIERED.format(tier=tier), tier=tier))
    return found


def build(arrays: Path, tier: str) -> None:
    from flyweight.tiers import build

    build(arrays, tier, in_place=True)


# Measuring --------------------------------------------------------------------------------------


def measure(entered: Sequence[Way], runs: int, threads: int) -> dict[str, dict[str, Any]]:
    """Way → its row of the table."""
    taken: dict[str, dict[str, list[float]]] = {way.label: {} for way in entered}
    needed = {way.label: way.needed() for way in entered if way.who == "flyweight"}

    def note(way: Way, figures: Mapping[str, float | None]) -> None:
        for name, value in figures.items():
            if value is not None:
                taken[way.label].setdefault(name, []).append(value)

    everything = sorted({path for way in entered for path in files_of(way.place)})
    with ballast(ROOM):
        for turn in range(runs):
            for way in entered:
                if turn and taken[way.label]["cold"][0] > SLOW:
                    continue
                drop(everything)
                note(way, {"cold": way.load(threads)["ready"]})
                for _ in range(WARM_RUNS):
                    warm = way.load(threads)
                    note(way, {"warm": warm["ready"], "private": warm["private"], "resident": warm["resident"]})
                if way.label in needed:
                    note(way, way.reading(needed[way.label]))
                seen = [f"{state} {taken[way.label][state][-1]:7.0f}" for state in ("cold", "warm")]
                print(f"  {way.label:24} {'  '.join(seen)} ms", flush=True)
        for way in entered:
            if drop_everything():
                first = way.load(threads, backed=False)
                note(way, {"boot": first["since start"]})
                print(f"  {way.label:24} after a start of the machine {first['since start']:7.0f} ms", flush=True)
    table: dict[str, dict[str, Any]] = {}
    for way in entered:
        figures: dict[str, Any] = {name: spread(values) for name, values in taken[way.label].items()}
        figures |= {"who": way.who, "form": way.form, "disk": nbytes_of(way.files), "runs": len(taken[way.label]["cold"])}
        if way.label in needed:
            figures["first"] = sum(extent.nbytes for extent in needed[way.label])
        table[way.label] = figures
    return table


def cold_again(entered: Sequence[Way], table: dict[str, dict[str, Any]], turns: int, threads: int) -> None:
    """More turns of the cold loads that are held against the disk, and of reading beside them, in place of the few there were:
    both vary from turn to turn."""
    held = [way for way in entered if way.label in {f"flyweight, {form}" for form in COLD}]
    everything = sorted({path for way in entered for path in files_of(way.place)})
    taken: dict[str, dict[str, list[float]]] = {way.label: {} for way in held}
    with ballast(ROOM):
        for _ in range(turns):
            for way in held:
                drop(everything)
                figures = {"cold": float(way.load(threads)["ready"] or nan)} | way.reading(way.needed())
                for name, ms in figures.items():
                    taken[way.label].setdefault(name, []).append(ms)
                print(f"  {way.label:24}", *(f"{name} {ms:.0f}" for name, ms in figures.items()), flush=True)
    for label, found in taken.items():
        table[label] |= {name: spread(values) for name, values in found.items()} | {"cold turns": turns}


def perplexities(entered: Sequence[Way], text: Path, threads: int) -> dict[str, float]:
    """Ours with f32 activations, so that only weights differ; transformers and llama.cpp as they are; MLX's files by us."""
    native = next(way for way in entered if way.form == "native")
    with open_model(native.place) as model:
        asked = windows_of(model.tokenizer.encode(text.read_text("utf-8"), special=False), CONTEXT, WINDOWS * CONTEXT)
    held = PLACE / "windows.json"
    held.write_text(json.dumps(asked.tolist()), encoding="utf-8")
    found = {}
    for way in entered:
        if way.who in EVERY_LOGIT:
            command = [way.python, "-c", EVERY_LOGIT[way.who] + SURPRISE, str(way.place), str(threads), str(held)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            found[way.label] = float(done.stdout)
        else:
            with open_model(way.open(), context=CONTEXT, kv="f32", int8=False, allow_ungated=True) as model:
                found[way.label] = evaluate(asked, predictor(model)).figures()["perplexity"].value
        print(f"  {way.label:24} perplexity {found[way.label]:8.3f}", flush=True)
    return found


def builds(arrays: Path, memory: float) -> Iterable[dict[str, Any]]:
    """The first load: building a tier beside the slower of memory, copying as much, and of the disk: from arrays on it, which
    are read and as much written; and from arrays in memory, of which as much is written."""
    files = files_of(arrays / "tensors")
    stored = [Extent(str(file.relative_to(arrays)), 0, file.stat().st_size) for file in files]
    for tier in ("packed", "cache"):
        peaks = []
        for state, limit in (("on disk", "reading and writing"), ("in memory", "writing")):
            rates, limits = [], []
            for _ in range(BUILD_TURNS):
                prune(arrays, tiers=[tier])
                if state == "on disk":
                    drop(files)
                else:
                    for file in files:
                        file.read_bytes()
                back()
                command = [sys.executable, "-c", BUILD, str(arrays), tier]
                made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
                back()
                needed = made["nbytes"] / 1e6 / write_rate(PLACE, made["nbytes"])
                if state == "on disk":
                    needed += read_ms(arrays, stored, PLACE / "needed.json")["plain"] / 1e3
                rates.append(made["nbytes"] / made["seconds"] / 1e6)
                limits.append(min(made["nbytes"] / 1e6 / needed, memory))
                peaks.append(made["peak"])
                print(f"  {tier}, arrays {state}: {rates[-1]:.0f} of {limits[-1]:.0f} MB/s", flush=True)
            figures = {"flyweight": spread(rates), limit: spread(limits)}
            yield row(f"{LARGE}, int4 {state} → {tier}, first load", "MB/s", "flyweight", figures, f"0.5× {limit}")
        yield row(f"{LARGE}, int4 → {tier}, peak memory", "MB", "flyweight", {"flyweight": spread(peaks)}, "at most 512 MB")


# Targets ----------------------------------------------------------------------------------------

WARM = {"packed": "at most 200 ms", "cache": "at most 350 ms"}
COLD = ("native", "packed", "cache")
FACTORS = ((3.7, "warm"), (54, "boot"))
"""What a warm load of ours is held against: theirs warm, and their first after a start of the machine."""


def targets(table: Mapping[str, Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Of the large model: what was promised of the tiers, as rows that a verdict can be given on."""
    peers = [who for who in ("transformers", "mlx-lm") if f"{who}, bf16" in table]
    for tier, warm in WARM.items():
        ours = table[f"flyweight, {tier}"]

        def beside(state: str, ours: Mapping[str, Any] = ours) -> dict[str, Any]:
            return {"flyweight": ours["warm"]} | {f"{who} {state}": table[f"{who}, bf16"][state] for who in peers}

        yield row(f"{LARGE}, {tier}, warm", "ms", "flyweight", {"flyweight": ours["warm"]}, warm)
        yield row(f"{LARGE}, {tier}, private", "MB", "flyweight", {"flyweight": ours["private"]}, "at most 160 MB")
        for factor, state in FACTORS:
            if all(state in table[f"{who}, bf16"] for who in peers):
                goal = ", ".join(f"at most {1 / factor:.4f}× {who} {state}" for who in peers)
                yield row(f"{LARGE}, {tier}, warm, {factor} times as fast as {state}", "ms", "flyweight", beside(state), goal)
    for form in COLD:
        ours = table[f"flyweight, {form}"]
        figures = {"flyweight": ours["cold"], "reading": ours["read, plain"], "reading past the cache": ours["read, direct"]}
        yield row(f"{LARGE}, {form}, cold", "ms", "flyweight", figures, "at most 1.1× reading")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct")
    parser.add_argument("text", type=Path, help="for perplexity")
    parser.add_argument("--llama", metavar="PYTHON")
    parser.add_argument(
        "--peers", metavar="PYTHON", default=sys.executable, help="has transformers and mlx-lm (default: this one)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--only", choices=(SMALL, LARGE))
    options = parser.parse_args()
    about, title = machine(), __doc__.splitlines()[0]
    report = {**about, "title": title, "runs": options.runs, "threads": options.threads, "load_average": os.getloadavg()[0]}
    print(f"{title}\n{headline(about)}\nload average {report['load_average']:.1f}, {options.threads} threads", flush=True)
    llama = llama_python(options.llama)
    sources: dict[str, Callable[[], Path]] = {SMALL: lambda: small_model(options.gguf), LARGE: large_model}
    models: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    for name, source in sources.items():
        if options.only in (None, name):
            entered = ways(source(), PLACE / name, options.peers, llama)
            models[name] = measure(entered, options.runs, options.threads)
            if name == SMALL:
                for label, value in perplexities(entered, options.text, options.threads).items():
                    models[name][label]["perplexity"] = value
            else:
                cold_again(entered, models[name], COLD_TURNS, options.threads)
                results += targets(models[name])
                with ballast(ROOM):
                    results += builds(PLACE / name / "int4", about["limits"]["copy"]["median"])
    print(*map(show, results), sep="\n")
    report |= {"load_average": max(report["load_average"], os.getloadavg()[0]), "models": models, "results": results}
    record("tiers", report)


if __name__ == "__main__":
    main()
