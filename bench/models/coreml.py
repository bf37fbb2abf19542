"""Core ML packages beside coremltools, which owns them: palettes, compressing a package, opening and decoding one, memory.

palettes       a 4-bit palette of one large f16 matrix by k-means, from weights in memory: time, and the memory it takes beyond
               them; then a file of it converted to a package. The run stops if ours has the larger error
compressing    a package of f16 weights to one of int8 or of palettes: both open it, compress it and write another; MB/s of
               the f16 weights, and the highest memory of the process
opening        `flyweight inspect` of a package of 1 GB, as a process
decoding       every weight of a package, beside the same codecs on the same parts in memory; MB/s of f32
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import flyweight
from bench import record
from flyweight.bench import headline, machine
from flyweight.bench.harness import Work, measure, seconds
from flyweight.bench.running import row, show, spread
from flyweight.codecs import codec_for

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
FOLDER = Path(".bench/coreml")
PEER = "coremltools"
LARGE = (27648, 3072)
MIDDLE = (4096, 4096)


def drawn(rows: int, columns: int, seed: int = 0) -> Array:
    """Weights as of a trained layer: nearly normal, with heavier tails."""
    return (np.random.default_rng(seed).standard_t(6, (rows, columns)).astype(np.float32) * 0.02).astype(np.float16)


def made(name: str, matrices: int, shape: tuple[int, int], quant: str = "dense") -> Path:
    """A package of drawn matrices, made once; beyond the first they are its rows in another order."""
    package = FOLDER / f"{name}.mlpackage"
    if not package.exists():
        source = FOLDER / f"{name}.safetensors"
        write_matrices(source, matrices, shape)
        flyweight.convert(source, package, quant=quant)
        source.unlink()
    return package


def write_matrices(path: Path, matrices: int, shape: tuple[int, int]) -> None:
    weights = drawn(*shape)
    offsets = [weights.nbytes * index for index in range(matrices + 1)]
    table = {
        f"layers.{index}.weight": {"dtype": "F16", "shape": shape, "data_offsets": offsets[index : index + 2]}
        for index in range(matrices)
    }
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for index in range(matrices):
            file.write(np.roll(weights, 97 * index, axis=0).data)


# Work that a process of its own does ----------------------------------------------------------------

OURS = """
import sys, time
import numpy as np
import flyweight
from flyweight.runtime import peak_rss

def palette(weights):
    from flyweight.codecs.palette import Palette
    from flyweight.foundation.dtypes import DType
    from flyweight.foundation.tensor import TensorSpec
    from flyweight.quantizers import QUANTIZERS
    spec, codec = TensorSpec(weights.shape, DType.F32), Palette(4)
    parts = QUANTIZERS["kmeans"](weights, codec, spec)
    return lambda: codec.decoded_runs(spec, parts)

def compress(source, target, quant):
    flyweight.convert(source, target, quant=quant)
"""
THEIRS = """
import logging, sys, time, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
import numpy as np
import coremltools as ct
import coremltools.optimize.coreml as cto
from flyweight.runtime import peak_rss

def palette(weights):
    from coremltools.models.neural_network.quantization_utils import _get_kmeans_lookup_table_and_weight as kmeans
    table, codes = kmeans(4, weights, force_kmeans1d=True)
    table = table.astype(np.float16).astype(np.float32)
    return lambda: (table[codes[at : at + (1 << 20)]] for at in range(0, codes.size, 1 << 20))

def compress(source, target, quant):
    if quant == "int8":
        settings = cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=0)
        run = cto.linear_quantize_weights
    else:
        settings = cto.OpPalettizerConfig(mode="kmeans", nbits=4, weight_threshold=0)
        run = cto.palettize_weights
    model = ct.models.MLModel(source, skip_model_load=True)
    run(model, config=cto.OptimizationConfig(global_config=settings)).save(target)
"""
PALETTE = """
weights = np.load(sys.argv[1])
before, start = peak_rss(), time.perf_counter()
decoded = palette(weights)
taken, most = time.perf_counter() - start, peak_rss()
flat, at, error, energy = weights.reshape(-1), 0, 0.0, 0.0
for run in decoded():
    wide = flat[at : at + run.size].astype(np.float64)
    error, energy, at = error + np.sum((run - wide) ** 2), energy + np.sum(wide**2), at + run.size
print("result", taken, (most - before) / 1e6, (error / energy) ** 0.5)
"""
COMPRESS = """
start = time.perf_counter()
compress(sys.argv[1], sys.argv[2], sys.argv[3])
print("result", time.perf_counter() - start, peak_rss() / 1e6)
"""


def asked(program: str, *arguments: str) -> list[float]:
    """The numbers that a fresh process prints last."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return [float(word) for word in done.stdout.splitlines()[-1].split()[1:]]


# Parts ----------------------------------------------------------------------------------------------


def palettes(runs: int) -> Iterator[Row]:
    for shape, beside in ((MIDDLE, True), (LARGE, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") > 18e9)):
        file = FOLDER / "weights.npy"
        np.save(file, drawn(*shape))
        programs = {"flyweight": OURS} | ({PEER: THEIRS} if beside else {})
        results = {
            who: [asked(program + PALETTE, str(file)) for _ in range(runs if who == "flyweight" else 1)]
            for who, program in programs.items()
        }
        file.unlink()
        errors = {who: measured[0][2] for who, measured in results.items()}
        if errors["flyweight"] > min(errors.values()) * (1 + 1e-6):
            sys.exit(f"our error {errors['flyweight']} is above {PEER}' {errors[PEER]}; a speed would mean nothing")
        name, goal = "×".join(map(str, shape)), shape == LARGE
        times = {who: spread(1e3 * taken for taken, _, _ in measured) for who, measured in results.items()}
        most = {who: spread(mb for _, mb, _ in measured) for who, measured in results.items()}
        yield row(f"{name}: 4-bit k-means", "ms", "flyweight", times, "at most 5000 ms" if goal else "")
        yield row(f"{name}: memory beyond the weights", "MB", "flyweight", most, "at most 512 MB" if goal else "")
        if goal:
            yield from converted_alone(runs)
        yield row(f"{name}: relative error", "‰", "flyweight", {who: spread([1e3 * e]) for who, e in errors.items()})


def converted_alone(runs: int) -> Iterator[Row]:
    """The same from a file to a package, as a whole process sees it."""
    source, target = FOLDER / "large.safetensors", FOLDER / "large.mlpackage"
    write_matrices(source, 1, LARGE)
    results = []
    for _ in range(runs):
        shutil.rmtree(target, ignore_errors=True)
        results.append(asked(OURS + COMPRESS, str(source), str(target), "lut4"))
    source.unlink()
    times, most = spread(1e3 * taken for taken, _ in results), spread(mb for _, mb in results)
    yield row("its file to a package: lut4", "ms", "flyweight", {"flyweight": times}, "at most 5000 ms")
    yield row("its file to a package: peak", "MB", "flyweight", {"flyweight": most}, "at most 512 MB")


def compressing(runs: int) -> Iterator[Row]:
    source = made("middle", 8, MIDDLE)
    nbytes = 8 * 2 * MIDDLE[0] * MIDDLE[1]
    for quant in ("int8", "lut4"):
        results: dict[str, list[list[float]]] = {}
        for who, program in {"flyweight": OURS, PEER: THEIRS}.items():
            for _ in range(runs if who == "flyweight" else 1):
                target = FOLDER / "out.mlpackage"
                shutil.rmtree(target, ignore_errors=True)
                results.setdefault(who, []).append(asked(program + COMPRESS, str(source), str(target), quant))
        speeds = {who: spread(nbytes / 1e6 / taken for taken, _ in measured) for who, measured in results.items()}
        yield row(f"{quant}: compress", "MB/s", "flyweight", speeds, f"3× {PEER}")
        most = {who: spread(mb for _, mb in measured) for who, measured in results.items()}
        yield row(f"{quant}: peak", "MB", "flyweight", most, f"at most 1× {PEER}")


def opening(runs: int) -> Iterator[Row]:
    package = made("gigabyte", 256, (2048, 1024))
    command = [sys.executable, "-m", "flyweight", "inspect", str(package)]

    def inspect() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    inspect()
    size = sum(file.stat().st_size for file in package.rglob("*") if file.is_file()) / 1e6
    times = {"flyweight": spread(1e3 * seconds(inspect) for _ in range(2 * runs - 1))}
    yield row(f"inspect, {size:.0f} MB", "ms", "flyweight", times, "at most 300 ms")


def decoding(runs: int) -> Iterator[Row]:
    for quant in ("int8", "lut4", "int4-b32"):
        with flyweight.open(made(f"middle-{quant}", 8, MIDDLE, quant)) as checkpoint:
            stored = {name: checkpoint.encoded(name) for name in checkpoint}
            held = {name: {part: np.array(array) for part, array in tensor.parts.items()} for name, tensor in stored.items()}
            works: dict[str, Work] = {
                "flyweight": lambda c=checkpoint: [c[name].shape for name in c],
                "codec alone": lambda s=stored, h=held: [
                    codec_for(tensor.codec).decode(tensor.spec, h[name]).shape for name, tensor in s.items()
                ],
            }
            nbytes = sum(4 * tensor.spec.size for tensor in stored.values())
            yield row(f"{quant}: decode", "MB/s", "flyweight", measure(works, nbytes, runs), "0.8× codec alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: dict[str, Callable[[int], Iterable[Row]]] = {
        "palettes": palettes,
        "compressing": compressing,
        "opening": opening,
        "decoding": decoding,
    }
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=parts)
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    load, about, title = os.getloadavg()[0], machine(), __doc__.splitlines()[0]
    print(f"{title}\n{headline(about)}\nload average {load:.1f}", flush=True)
    results = []
    for name, part in parts.items():
        if options.only in (None, name):
            for result in part(options.runs):
                results.append({"part": name, **result})
                print(show(result), flush=True)
    if not options.only:
        record("coreml", {**about, "title": title, "runs": options.runs, "load_average": load, "results": results})


if __name__ == "__main__":
    main()
