"""KL divergence at equal file size, on two texts, beside llama.cpp with its own importance matrix.

    python -m bench.quality.sizes MODEL TEXTS [--name NAME --dtype f32 --llama FOLDER --mlx PYTHON …]

MODEL's channels are permuted (`permute`), which keeps the function and hides its old quantization. For every type of llama.cpp
come a file of llama-quantize, plain and with an importance matrix, and of ours in exactly its bytes:

    plain     `--quant TYPE`, no statistics
    weighed   `--quant TYPE --imatrix`, llama.cpp's own
    named     `--quant TYPE --stats`: the same types, error fed back
    stock     `--target-size`, GGUF: types chosen for the size, which stock llama.cpp runs
    any       `--target-size`, a Hugging Face directory: any of our codecs

and beside mlx-lm's 4 bits ours and those of HQQ. Everybody has the same calibration text: that which ships with Flyweight,
essays, and the source of Jinja. Judged are the Debian handbook (prose) and the source of Click (code), of which nobody has seen
anything; products, activations and cache are f32, so that nothing but weights differs. Every row is recorded when it is there:
a run that is stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench import record, recorded
from bench.quality.permute import permuted_beside
from bench.quality.verb import Ran, flyweight, timed
from flyweight import api, kernels
from flyweight.bench.harness import processor
from flyweight.calibration import shipped_texts
from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.evaluate import Predictor, evaluate, windows_of
from flyweight.evaluate.predict import of_decoder
from flyweight.evaluate.windows import read_text
from flyweight.foundation.dtypes import DType
from flyweight.foundation.sensitivity import Cost
from flyweight.measuring import measure_costs
from flyweight.runtime import open_model
from flyweight.runtime.decoder import Decoder, Settings
from flyweight.runtime.model import usable_cores
from flyweight.runtime.tensors import Tensors

Array = np.ndarray[Any, Any]

TYPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q4_0", "Q3_K_M", "Q2_K")
FORMS = ("llama", "llama_imatrix", "plain", "weighed", "named", "stock", "any", "hqq")
PLAIN_ONLY = {"Q8_0"}
"""Types that llama.cpp has no use for an importance matrix in."""
JUDGED = {"prose": "debian-handbook.txt", "code": "click.txt"}
CALIBRATED = {"prose": "anarchism.txt", "code": "jinja2.txt"}
CHARACTERS = 100_000
"""Of each of them."""
TOKENS = 65536
RAM = ("--max-ram", "2G")
HQQ = """
name = "hqq"
matrices_only = true

[[rules]]
match = "*"
codec = "affine"
params = { bits = 4, group = 64, scale = "f16" }
quantizer = "hqq"
"""
FIRST = 4
"""Predictions of a window that count as its first."""


def evenly(text: str, characters: int) -> str:
    """Paragraphs from all over a text."""
    paragraphs = text.split("\n\n")
    step = max(len(text) // characters, 1)
    return "\n\n".join(paragraphs[::step])[:characters]


def calibration_text(texts: Path, out: Path) -> list[Path]:
    """The files, and all of them in one for llama-imatrix."""
    out.mkdir(parents=True, exist_ok=True)
    written = {text.name: text.content for text in shipped_texts()}
    written |= {f"{kind}-{name}": evenly(read_text(texts / name), CHARACTERS) for kind, name in CALIBRATED.items()}
    for name, text in written.items():
        (out / name).write_text(text, "utf-8")
    (out / "all").write_text("\n\n".join(written.values()), "utf-8")
    return [out / name for name in written]


class Judge:
    """A text, and what the source says of it, computed once."""

    def __init__(self, source: Path, text: Path, context: int, count: int) -> None:
        self.context = context
        with open_model(source, context=context, kv="f32", int8=False) as model:
            ids = np.array(model.tokenizer.encode(read_text(text), special=False))
        every = windows_of(list(ids), context, len(ids))
        self.windows = every[np.arange(count) * len(every) // count]
        with open_checkpoint(source) as checkpoint:
            reference = self._predictor(Tensors(checkpoint))
            self._kept = {window.tobytes(): list(reference(window)) for window in self.windows}

    def _predictor(self, tensors: Tensors) -> Predictor:
        return of_decoder(Decoder(tensors, self.context, Settings(False, usable_cores())), "f32")

    def __call__(self, form: Path) -> dict[str, Any]:
        with open_checkpoint(form) as checkpoint:
            predict = self._predictor(Tensors(checkpoint))
            found = evaluate(self.windows, predict, lambda window: iter(self._kept[window.tobytes()]))
        assert found.divergence is not None
        figures = {
            name: {"value": float(f"{each.value:.6g}"), "error": each.error and float(f"{each.error:.2g}")}
            for name, each in found.figures().items()
        }
        return figures | {"kl_first": float(f"{found.divergence[:, :FIRST].mean():.4g}")}


class Sizes:
    """The files of one model, made one at a time in a folder of their own."""

    def __init__(self, name: str, source: Path, texts: Path, llama: Path | None, folder: Path) -> None:
        self.source, self.llama, self.folder, self.threads = source, llama, folder, str(usable_cores())
        self.name, self.report = name, recorded("sizes")
        self.rows: dict[str, Any] = self.report.setdefault(name, {}).setdefault("rows", {})
        self.cost: dict[str, Any] = self.report[name].setdefault("cost", {})
        folder.mkdir(parents=True, exist_ok=True)
        self._small = ProcessPoolExecutor(1, get_context("spawn"))
        """What is made, is started from there: a program's peak memory counts what the process had that started it."""
        self.calibration = calibration_text(texts, folder / "calibration")

    def save(self) -> None:
        self.report |= {"date": str(datetime.now(UTC).date()), "processor": processor(), "kernels": kernels.active()}
        record("sizes", self.report)

    def spent(self, what: str, ran: Ran) -> None:
        self.cost[what] = {"seconds": round(ran.seconds, 1), "peak_mb": round(ran.peak_bytes / 1e6)}
        self.save()

    # What others need ---------------------------------------------------------------------------

    def tool(self, name: str, *arguments: str | Path) -> Ran:
        assert self.llama is not None
        return self.run(timed, [str(self.llama / f"llama-{name}"), *map(str, arguments)], quiet=True)

    def run(self, program: Callable[..., Ran], *arguments: Any, **options: Any) -> Ran:
        return self._small.submit(program, *arguments, **options).result()

    def statistics(self) -> Path:
        out = self.folder / "statistics"
        if not out.exists():
            texts = [argument for text in self.calibration for argument in ("--text", text)]
            ran = self.run(flyweight, "calibrate", self.source, "-o", out, "--gram", "--tokens", str(TOKENS), *RAM, *texts)
            self.spent("calibrate", ran)
        return out

    def gguf(self) -> Path:
        out = self.folder / "source.gguf"
        if not out.exists():
            self.run(flyweight, "convert", self.source, out)
        return out

    def imatrix(self) -> Path:
        out = self.folder / "imatrix.gguf"
        if not out.exists():
            text, threads = self.folder / "calibration/all", ("-t", self.threads)
            part = out.with_name("part.gguf")  # it is written several times on the way
            ran = self.tool("imatrix", "-m", self.gguf(), "-f", text, "-o", part, "--no-ppl", *threads)
            part.rename(out)
            self.spent("llama-imatrix", ran)
        return out

    # Rows ---------------------------------------------------------------------------------------

    def ways(self, types: list[str], forms: list[str]) -> Iterator[tuple[str, Callable[[], tuple[Path, Ran]]]]:
        """What there is to measure, by its name, and how it is made."""
        for kind in types:
            if self.llama is not None:
                yield f"llama {kind}", lambda kind=kind: self.of_llama(kind)
                if kind not in PLAIN_ONLY:
                    yield f"llama_imatrix {kind}", lambda kind=kind: self.of_llama(kind, "--imatrix", self.imatrix())
            yield f"plain {kind}", lambda kind=kind: self.ours(".gguf", "--quant", kind)
            if self.llama is not None and kind not in PLAIN_ONLY:
                yield f"weighed {kind}", lambda kind=kind: self.ours(".gguf", "--quant", kind, "--imatrix", self.imatrix())
            yield f"named {kind}", lambda kind=kind: self.ours(".gguf", "--quant", kind, "--stats", self.statistics(), *RAM)
            yield f"stock {kind}", lambda kind=kind: self.of_size(".gguf", kind)
            yield f"any {kind}", lambda kind=kind: self.of_size("", kind)

        yield "hqq 4bit", lambda: self.ours("", "--recipe", self.recipe("hqq", HQQ))

    def recipe(self, name: str, text: str) -> Path:
        file = self.folder / f"{name}.toml"
        file.write_text(text, "utf-8")
        return file

    def of_llama(self, kind: str, *options: str | Path) -> tuple[Path, Ran]:
        out = self.folder / "made.gguf"
        return out, self.tool("quantize", *options, self.gguf(), out, kind, self.threads)

    def ours(self, suffix: str, *options: str | Path) -> tuple[Path, Ran]:
        out = self.folder / f"made{suffix}"
        return out, self.run(flyweight, "convert", self.source, out, *options)

    def of_size(self, suffix: str, kind: str) -> tuple[Path, Ran]:
        """In this process, where costs are measured once for all sizes."""
        names = (f"llama_imatrix {kind}", f"llama {kind}", f"plain {kind}")
        size = next(self.rows[row]["nbytes"] for row in names if row in self.rows)
        out, started = self.folder / f"made{suffix}", time.perf_counter()
        report = api.convert(
            self.source, out, target_size=size, statistics=self.statistics(), measure_costs=self.measured_costs
        )
        for note in report.notes[:1]:
            print(note, flush=True)
        return out, Ran(None, time.perf_counter() - started, 0)

    def measured_costs(self, checkpoint: Checkpoint, inputs_of: Any, **options: Any) -> Mapping[str, Cost]:
        file = self.folder / "costs.json"
        if file.exists():
            checkpoint.close()
            return {name: Cost(nats) for name, nats in json.loads(file.read_text()).items()}
        started = time.perf_counter()
        costs = measure_costs(checkpoint, inputs_of, **options)
        file.write_text(json.dumps({name: cost.nats for name, cost in costs.items()}))
        self.spent("costs for --target-size", Ran(None, time.perf_counter() - started, 0))
        return costs

    def measure(self, name: str, make: Callable[[], tuple[Path, Ran]], judges: dict[str, Judge], weights: int) -> None:
        form, ran = make()
        files = [form] if form.is_file() else [file for file in form.rglob("*") if file.is_file()]
        nbytes = sum(file.stat().st_size for file in files)
        row: dict[str, Any] = {"nbytes": nbytes, "bits_per_weight": round(8 * nbytes / weights, 4)}
        row |= {"seconds": round(ran.seconds, 1), "peak_mb": round(ran.peak_bytes / 1e6)}
        row["judged"] = {kind: judge(form) for kind, judge in judges.items()}
        shutil.rmtree(form) if form.is_dir() else form.unlink()
        self.rows[name] = row
        self.save()
        kls = ", ".join(
            f"{kind} {f['kl_mean']['value']:.5f} ± {f['kl_mean']['error']:.5f} (first {f['kl_first']:.4f})"
            for kind, f in row["judged"].items()
        )
        print(f"{time.strftime('%H:%M:%S')} {name:24} {row['bits_per_weight']:6.3f} bits  KL {kls}", flush=True)


def mlx_form(python: str, source: Path, out: Path) -> Ran:
    arguments = [
        "-m",
        "mlx_lm",
        "convert",
        "--hf-path",
        source,
        "--mlx-path",
        out,
        "-q",
        "--q-bits",
        "4",
        "--q-group-size",
        "64",
    ]
    return timed([python, *map(str, arguments)], quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--name", default="SmolLM2-135M")
    parser.add_argument("--dtype", default="f32", help="of the permuted source")
    parser.add_argument("--llama", type=Path, help="a folder with llama.cpp's tools (tools/build_llama_cpp.py)")
    parser.add_argument("--mlx", help="an interpreter with mlx-lm")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--again", action="store_true", help="measure what is recorded, too")
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    source = permuted_beside(given.model, f"permuted-{given.name}", DType.parse(given.dtype))
    sizes = Sizes(given.name, source, given.texts, given.llama, Path(".bench/sizes") / given.name)
    asked = {"windows": given.windows, "context": given.context, "dtype": given.dtype, "tokens": TOKENS}
    if sizes.report[given.name].get("asked") != asked:
        sizes.report[given.name]["asked"] = asked
        sizes.rows.clear()
    with open_checkpoint(source) as checkpoint:
        weights = sum(entry.spec.size for entry in checkpoint.manifest.entries.values())
    forms = given.forms.split(",")
    ways = [way for way in sizes.ways(given.types.split(","), forms) if way[0].split()[0] in forms]
    if given.mlx:
        out = sizes.folder / "made"
        ways.append(("mlx_lm 4bit", lambda: (out, sizes.run(mlx_form, given.mlx, source, out))))
        ways.append(("mlx 4bit", lambda: sizes.ours("", "--to", "mlx", "--quant", "4bit", "--stats", sizes.statistics())))
    ways = [way for way in ways if given.again or way[0] not in sizes.rows]
    if not ways:
        sys.exit("everything is recorded; --again measures anew")
    judges = {kind: Judge(source, given.texts / name, given.context, given.windows) for kind, name in JUDGED.items()}
    for name, make in ways:
        sizes.measure(name, make, judges, weights)


if __name__ == "__main__":
    main()
