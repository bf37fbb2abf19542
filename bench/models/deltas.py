"""Fine-tunes stored as deltas on their base, beside other ways to store them: size, speed, memory, and running them.

coding    the coders of `delta_coders` on the pairs of `delta_pairs`, in memory, on one core; MB/s of the model's bytes
files     MiniLM in bf16, from two directories to a file and from base and file to arrays in memory, on one core, beside
          deltatensors, the public tool for .wdelta; the error is that of the change: 0 rebuilt, 1 left out
memory    what making and applying takes above an interpreter that has imported the tool, for one size and four times it
running   the model of `fine_tune` as base + delta beside the fine-tune itself: opened, and the first token, from the
          start of the process
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import flyweight
from bench import record
from bench.models.delta_coders import coders
from bench.models.delta_pairs import BASE, TUNED, pairs
from flyweight.bench import headline, machine
from flyweight.bench.harness import Work, measure
from flyweight.bench.running import FLYWEIGHT, Contender, compare, row, show, spread
from flyweight.runtime.model import usable_cores

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
RATIOS = {
    "MiniLM, bf16": "6.2×",
    "MiniLM, f32": "1.95×",
    "σ = 5e-4, bf16": "2.95×",
    "σ = 1e-4, bf16": "5.3×",
    "σ = 1e-5, bf16": "30×",
    "RL-like, bf16": "200×",
}
STRATEGIES = ("exact", "int4", "quantized", "sparse")
FOLDER = Path(".bench/deltas")
LAYERS, SHAPE = 8, (2048, 2048)
"""Of a model that is drawn: 67 MB of bf16."""


# Coding, in memory ----------------------------------------------------------------------------------


def coding(runs: int) -> Iterator[Row]:
    for pair in pairs():
        ratios, encoders, decoders = {}, dict[str, Work](), dict[str, Work]()
        for who, coder in coders().items():
            stored = coder.encode(pair.base, pair.tuned)
            rebuilt = coder.decode(pair.base, stored)
            if any(a.tobytes() != b.tobytes() for a, b in zip(rebuilt, pair.tuned, strict=True)):
                sys.exit(f"{who} does not give back {pair.name}; its figures would mean nothing")
            ratios[who] = spread([pair.nbytes / coder.nbytes(stored)])
            encoders[who] = partial(coder.encode, pair.base, pair.tuned)
            decoders[who] = partial(coder.decode, pair.base, stored)
        yield row(f"{pair.name}: ratio", "×", "flyweight", ratios, RATIOS[pair.name])
        yield row(f"{pair.name}: encode", "MB/s", "flyweight", measure(encoders, pair.nbytes, runs), "200 MB/s")
        yield row(f"{pair.name}: decode", "MB/s", "flyweight", measure(decoders, pair.nbytes, runs), "800 MB/s")


# Files ----------------------------------------------------------------------------------------------


def write_model(folder: Path, shapes: Mapping[str, tuple[int, ...]], values: Callable[[str], Array]) -> Path:
    """A directory with one file of bf16 tensors."""
    header, at = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at := at + 2 * int(np.prod(shape))]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            file.write(values(name).astype(ml_dtypes.bfloat16, copy=False).tobytes())
    return folder


def real_directories() -> tuple[Path, Path]:
    """What both models have, in bf16: the public tool refuses them as they are, because the base has one tensor more."""
    with flyweight.open(BASE) as base, flyweight.open(TUNED) as tuned:
        shapes = {name: tuned[name].shape for name in tuned if name in base}
        return tuple(write_model(FOLDER / who, shapes, model.__getitem__) for who, model in (("base", base), ("tuned", tuned)))


def drawn_pair(folder: Path, layers: int) -> tuple[Path, Path]:
    """A model of so many layers, and one that is a little different. Layers are the same values, at other places."""
    random = np.random.default_rng(0)
    weights = (random.standard_normal(SHAPE, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    moved = (weights.astype(np.float32) + random.standard_normal(SHAPE, np.float32) * np.float32(1e-4)).astype(weights.dtype)
    shapes = {f"layers.{layer}.weight": SHAPE for layer in range(layers)}

    def layer_of(model: Array, name: str) -> Array:
        return np.roll(model, int(name.split(".")[1]), axis=0)

    return (
        write_model(folder / "base", shapes, partial(layer_of, weights)),
        write_model(folder / "tuned", shapes, partial(layer_of, moved)),
    )


@cache
def public_tool() -> Any:
    try:
        return import_module("deltatensors")
    except ModuleNotFoundError:
        print("deltatensors is not here: measuring without it")
        return None


def quietly(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The public tool prints what it does."""
    with contextlib.redirect_stdout(io.StringIO()):
        return work(*arguments, **options)


def remade(work: Callable[[Path], object], out: Path) -> None:
    out.unlink(missing_ok=True)
    work(out)


def rebuilt(base: Path, delta: Path, in_f32: bool) -> dict[str, Array]:
    with flyweight.open(base, deltas=[delta], in_f32=in_f32) as model:
        return {name: model[name] for name in model}


def error_of(base: Path, tuned: Path, result: Any) -> float:
    """‖result − tuned‖ / ‖tuned − base‖, over all tensors."""
    missed = change = 0.0
    with flyweight.open(base) as before, flyweight.open(tuned) as after:
        for name in after:
            wanted, had = after[name].astype(np.float64), before[name].astype(np.float64)
            missed += float(np.square(result[name].astype(np.float64) - wanted).sum())
            change += float(np.square(wanted - had).sum())
    return (missed / change) ** 0.5


class ToolRuns(NamedTuple):
    """What each tool does with a pair of directories."""

    save: dict[str, Work]
    load: dict[str, Work]
    files: dict[str, Path]


def tool_runs(base: Path, tuned: Path, strategy: str) -> ToolRuns:
    lossy = strategy != "exact"
    ours, theirs = base.with_name(f"{strategy}.wdelta"), base.with_name(f"{strategy}-public.wdelta")
    save = partial(flyweight.create_delta, base, tuned, strategy=strategy)
    found = ToolRuns(
        {"flyweight": partial(remade, save, ours)}, {"flyweight": partial(rebuilt, base, ours, lossy)}, {"flyweight": ours}
    )
    if lossy and (public := public_tool()):
        save = partial(public.save_delta_from_paths, finetuned_dir=tuned, base_dir=base, strategy=strategy)
        found.save["deltatensors"] = partial(remade, partial(quietly, save), theirs)
        found.load["deltatensors"] = partial(quietly, public.load_delta_from_paths, theirs, base)
        found.files["deltatensors"] = theirs
    return found


def files(runs: int) -> Iterator[Row]:
    if BASE.exists() and TUNED.exists():
        base, tuned = real_directories()
        size = (tuned / "model.safetensors").stat().st_size
        for strategy in STRATEGIES:
            tools = tool_runs(base, tuned, strategy)
            for save in tools.save.values():
                save()
            ratios = {who: spread([size / file.stat().st_size]) for who, file in tools.files.items()}
            yield row(f"MiniLM, {strategy}: ratio", "×", "flyweight", ratios, "6.2×" if strategy == "exact" else "")
            errors = {who: spread([error_of(base, tuned, load())]) for who, load in tools.load.items()}
            yield row(f"MiniLM, {strategy}: error", "×", "flyweight", errors)
    base, tuned = drawn_pair(FOLDER / "drawn", LAYERS)
    size = (tuned / "model.safetensors").stat().st_size
    for strategy in STRATEGIES:
        tools, target = tool_runs(base, tuned, strategy), "" if strategy == "exact" else "10× deltatensors"
        yield row(f"drawn, {strategy}: save", "MB/s", "flyweight", measure(tools.save, size, runs), target)
        yield row(f"drawn, {strategy}: load", "MB/s", "flyweight", measure(tools.load, size, runs), target)


# Memory ---------------------------------------------------------------------------------------------

PEAK = """
import json, sys
from flyweight.runtime import peak_rss
before = peak_rss()
work(*sys.argv[1:])
print(json.dumps((peak_rss() - before) / 1e6))
"""
CHILDREN = {
    ("making", "flyweight"): """
import flyweight, flyweight.api
def work(base, tuned, delta, out):
    flyweight.create_delta(base, tuned, delta, strategy="{strategy}")
""",
    ("applying", "flyweight"): """
import flyweight, flyweight.api
def work(base, tuned, delta, out):
    flyweight.apply_delta(base, [delta], out)
""",
    ("making", "deltatensors"): """
import deltatensors, torch, safetensors.torch
def work(base, tuned, delta, out):
    deltatensors.save_delta_from_paths(delta, tuned, base, strategy="{strategy}")
""",
    ("applying", "deltatensors"): """
import deltatensors, torch, safetensors.torch
def work(base, tuned, delta, out):
    rebuilt = deltatensors.load_delta_from_paths(delta, base)
    safetensors.torch.save_file({{name: torch.from_numpy(array) for name, array in rebuilt.items()}}, out)
""",
}


def memory() -> Iterator[Row]:
    peaks: dict[tuple[str, str, int], float] = {}
    public = public_tool()
    for scale in (1, 4):
        folder = FOLDER / f"{scale}x"
        shutil.rmtree(folder, ignore_errors=True)
        base, tuned = drawn_pair(folder, LAYERS * scale)
        for (verb, who), child in CHILDREN.items():
            if who == "deltatensors" and not public:
                continue
            strategy = "exact" if who == "flyweight" else "int4"
            delta, out = folder / f"{who}.wdelta", folder / f"{who}.safetensors"
            command = [sys.executable, "-c", child.format(strategy=strategy) + PEAK, *map(str, (base, tuned, delta, out))]
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            peaks[verb, who, scale] = json.loads(answer.splitlines()[-1])
        shutil.rmtree(folder)
    nbytes = 2 * LAYERS * SHAPE[0] * SHAPE[1] / 1e6
    for verb in ("making", "applying"):
        for scale in (1, 4):
            of = {
                who: spread([peaks[verb, who, scale]]) for who in ("flyweight", "deltatensors") if (verb, who, scale) in peaks
            }
            yield row(f"{verb}, {scale * nbytes:.0f} MB: peak", "MB", "flyweight", of, "at most 256 MB")


# Running --------------------------------------------------------------------------------------------

WITH_DELTA = FLYWEIGHT.replace("open_model(model,", "open_model(open_checkpoint(model, deltas=[DELTA]),").replace(
    "import open_model", "import open_model\n    from flyweight.checkpoint import open_checkpoint"
)
OPENING = """
import json, sys, time
def main(model, started, threads, *_):
    engine = load(model, int(threads))
    opened = time.time()
    engine.feed(list(engine.encode("The sky is blue because the light of the sun")))
    engine.best()
    print(json.dumps({"open": 1e3 * (opened - float(started)), "first token": 1e3 * (time.time() - float(started))}))

main(*sys.argv[1:])
"""


def running(folder: Path, runs: int, threads: int) -> Iterator[Row]:
    base, tuned, delta = folder / "base", folder / "tuned", folder / "tuned.wdelta"
    if not tuned.exists():
        print(f"{tuned} is not here (python -m bench.models.fine_tune): measuring without running")
        return
    remade(partial(flyweight.create_delta, base, tuned), delta)
    weights = (tuned / "model.safetensors").stat().st_size
    yield row("SmolLM2: ratio", "×", "base + delta", {"base + delta": spread([weights / delta.stat().st_size])})
    require_same_logits(base, tuned, delta)
    ours = f"DELTA = {str(delta)!r}\n{WITH_DELTA}"
    entered = {"base + delta": Contender(base, ours, probe=OPENING), "fine-tune": Contender(tuned, probe=OPENING)}
    for contender in entered.values():
        contender.run(threads)  # warms the page cache
    for name, figures in compare(entered, runs, threads).items():
        yield row(f"SmolLM2: {name}", "ms", "base + delta", figures, "at most 1.3× fine-tune" if name == "open" else "")


def require_same_logits(base: Path, tuned: Path, delta: Path) -> None:
    from flyweight.runtime import open_model

    logits = []
    for checkpoint in (flyweight.open(tuned), flyweight.open(base, deltas=[delta])):
        with open_model(checkpoint) as model:
            logits.append(model.decoder.forward(model.tokenizer.encode("The sky is blue because"), model.cache()).tobytes())
    if logits[0] != logits[1]:
        sys.exit("base + delta has other logits than the fine-tune")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=("coding", "files", "memory", "running"))
    parser.add_argument("--fine-tune", type=Path, default=Path(".bench/fine-tune"), metavar="FOLDER")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    load, about, title, cores = os.getloadavg()[0], machine(), __doc__.splitlines()[0], os.sched_getaffinity(0)
    print(f"{title}\n{headline(about)}\nload average {load:.1f}", flush=True)
    threads = usable_cores()
    parts: dict[str, Callable[[], Iterable[Row]]] = {
        "coding": lambda: coding(options.runs),
        "files": lambda: files(options.runs),
        "memory": memory,
        "running": lambda: running(options.fine_tune, 2 * options.runs - 1, threads),
    }
    results = []
    for name, part in parts.items():
        if options.only in (None, name):
            os.sched_setaffinity(0, {max(cores)} if name in ("coding", "files") else cores)
            for result in part():
                results.append({"part": name, **result})
                print(show(result), flush=True)
    if not options.only:
        record("deltas", {**about, "title": title, "runs": options.runs, "load_average": load, "results": results})


if __name__ == "__main__":
    main()
