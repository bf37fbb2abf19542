"""UQFF beside mistral.rs, which owns it: migrating files of one generation to the other, quantizing, and memory.

migrating    the real model as q8_0, from 0.1 to 1.2 and back, beside a plain copy of the same files; all end with fsync
quantizing   a Hugging Face directory of bf16 to a UQFF directory of 1.2, beside mistral.rs, which loads it, quantizes it in
             place and writes it, on the same cores; MB/s of the bf16 weights. The model has drawn weights in layers of real
             widths, because the tool takes minutes for the real one
memory       the highest of the process, for a model of two layers and one of eight
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import flyweight
from bench import record
from flyweight.bench import headline, machine
from flyweight.bench.harness import Work, measure, seconds
from flyweight.bench.running import row, show, spread

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # the worker that speaks for mistral.rs is there

from support.mistral_rs import CURRENT, MistralRs
from support.uqff_sources import CONFIGS, write_source

Row = dict[str, Any]
FOLDER = Path(".bench/uqff")
TOOL = "mistral.rs"
LAYERS = {"q4k": 8, "afq4": 8, "hqq4": 1}
"""Of the model that is quantized: the tool needs some twenty seconds for a layer of hqq4."""
WIDTHS = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 2048,
    "tie_word_embeddings": False,
}


def nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def anew(work: Callable[[Path], object], target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    work(target)


def copy(source: Path, target: Path) -> None:
    """The plainest copy of a directory: read, write, sync."""
    target.mkdir()
    for file in source.iterdir():
        with file.open("rb") as src, (target / file.name).open("wb") as dst:
            shutil.copyfileobj(src, dst, 8 << 20)
            dst.flush()
            os.fsync(dst.fileno())


def converting(source: Path, target: Path, **options: str) -> Work:
    return partial(anew, lambda out: flyweight.convert(source, out, **options), target)


def migrating(model: Path, runs: int) -> Iterator[Row]:
    old, new = FOLDER / "old", FOLDER / "new"
    anew(lambda out: flyweight.convert(model, out, to="uqff0", quant="q8_0"), old)
    anew(lambda out: flyweight.convert(old, out, to="uqff"), new)
    for name, source, to in (("0.1 → 1.2", old, "uqff"), ("1.2 → 0.1", new, "uqff0")):
        works: dict[str, Work] = {
            "flyweight": converting(source, FOLDER / "migrated", to=to),
            "copy": partial(anew, partial(copy, source), FOLDER / "copied"),
        }
        yield row(f"{name}: migrate", "MB/s", "flyweight", measure(works, nbytes(source), runs), "0.5× copy")


def drawn(layers: int) -> Path:
    """A llama of drawn weights, made once."""
    folder = FOLDER / f"drawn-{layers}"
    if not folder.exists():
        write_source(folder, CONFIGS["small"] | WIDTHS | {"num_hidden_layers": layers})
    return folder


def asked(tool: MistralRs, source: Path, isq: str) -> dict[str, Any]:
    """What a fresh process of the tool took to write a UQFF."""
    tool.close()
    target = FOLDER / "theirs"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    return tool.ask(source.resolve(), isq=isq, write=target.resolve() / f"{isq}.uqff")


def quantizing(runs: int) -> Iterator[Row]:
    with MistralRs(CURRENT, timeout=900) as tool:
        for isq, layers in LAYERS.items():
            source = drawn(layers)
            size = (source / "model.safetensors").stat().st_size / 1e6
            work = converting(source, FOLDER / "ours", to="uqff", quant=isq)
            work()
            rates: dict[str, list[float]] = {"flyweight": [], TOOL: []}
            for _ in range(runs):
                rates["flyweight"].append(size / seconds(work))
                rates[TOOL].append(size / asked(tool, source, isq)["seconds"])
            yield row(f"{isq}: quantize", "MB/s", "flyweight", {who: spread(rate) for who, rate in rates.items()}, f"3× {TOOL}")


PEAK = """
import json, sys
import flyweight
from flyweight.runtime import peak_rss
source, target, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
flyweight.convert(source, target, **options)
print(peak_rss() / 1e6)
"""


def peak(source: Path, target: Path, **options: str) -> float:
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-c", PEAK, str(source), str(target), json.dumps(options)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def memory() -> Iterator[Row]:
    with MistralRs(CURRENT, timeout=900) as tool:
        for layers in (2, 8):
            source = drawn(layers)
            size = f"{(source / 'model.safetensors').stat().st_size / 1e6:.0f} MB"
            theirs = asked(tool, source, "q4k")["peak_rss"] / 1e6
            peaks = {"flyweight": peak(source, FOLDER / "ours", to="uqff", quant="q4k"), TOOL: theirs}
            yield row(
                f"q4k, {size}: peak", "MB", "flyweight", {who: spread([mb]) for who, mb in peaks.items()}, "at most 256 MB"
            )
            peak(source, FOLDER / "old", to="uqff0", quant="q8_0")
            migrated = spread([peak(FOLDER / "old", FOLDER / "migrated", to="uqff")])
            yield row(f"0.1 → 1.2, {size}: peak", "MB", "flyweight", {"flyweight": migrated}, "at most 256 MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the real model, in any format")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=("migrating", "quantizing", "memory"))
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    load, about, title = os.getloadavg()[0], machine(), __doc__.splitlines()[0]
    print(f"{title}\n{headline(about)}\nload average {load:.1f}", flush=True)
    parts: dict[str, Callable[[], Iterable[Row]]] = {
        "migrating": lambda: migrating(options.model, 2 * options.runs - 1),
        "quantizing": lambda: quantizing(options.runs),
        "memory": memory,
    }
    results = []
    for name, part in parts.items():
        if options.only in (None, name):
            for result in part():
                results.append({"part": name, **result})
                print(show(result), flush=True)
    if not options.only:
        record("uqff", {**about, "title": title, "runs": options.runs, "load_average": load, "results": results})


if __name__ == "__main__":
    main()
