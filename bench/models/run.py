"""Running a model beside llama.cpp and transformers: start, memory, decode and prefill of the same weights.

    q4_0, q8_0   GGUF files made here (the embedding q8_0, as llama.cpp has it); both engines run the same file
    q4_k_m       what llama.cpp's own quantizer makes; both run it
    int4         our 4-bit forms: MLX's affine groups of 64, beside llama.cpp's q4_0
    bf16         transformers

With `--as-stored` nothing is made: a GGUF file of any size runs as it is, beside llama.cpp, and has results of its own.

Every figure is the median over processes that take turns. Run it on an idle machine: llama.cpp's threads wait awake for each
other, and where another program takes a core its speed falls to a tenth; the load average is kept with the figures. It is
measured where `--llama PYTHON` or the variable FLYWEIGHT_LLAMA_PYTHON names a Python with llama-cpp-python, or this one has it;
transformers where this Python has it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import flyweight
from bench import record
from bench.models.engines import LLAMA, TRANSFORMERS, llama_python
from flyweight.bench import headline, machine
from flyweight.bench.running import FIGURES, Contender, compare, row, show
from flyweight.runtime.model import usable_cores

QUANTIZE = """
import os, sys
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
import llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.allow_requantize, params.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M, True, 2
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""

RECIPE = """
[[rules]]
match = "*norm*"
codec = "keep"

[[rules]]
match = "*embed_tokens*"
codec = "q8_0"

[[rules]]
match = "*"
codec = "{codec}"
"""

TARGETS = {
    ("q4_0", "decode"): "1.2× llama.cpp q4_0",
    ("q4_0", "prefill"): "1× llama.cpp q4_0",
    ("q4_0", "first token"): "at most 1× llama.cpp q4_0",
    ("q4_0", "private"): "at most 80 MB",
    ("q8_0", "decode"): "1× llama.cpp q8_0",
    ("q8_0", "prefill"): "1× llama.cpp q8_0",
    ("q4_k_m", "decode"): "1× llama.cpp q4_k_m",
    ("int4", "decode"): "1.2× llama.cpp q4_0",
    ("as stored", "load"): "at most 1× llama.cpp as stored",
    ("as stored", "first token"): "at most 1× llama.cpp as stored",
    ("as stored", "private"): "at most 1× llama.cpp as stored",
    ("as stored", "own"): "at most 1× llama.cpp as stored",
    ("as stored", "decode"): "1× llama.cpp as stored",
    ("as stored", "prefill"): "1× llama.cpp as stored",
}


def made(folder: Path, source: Path, llama: str | None) -> dict[str, Path]:
    """The forms of the model, made once."""
    folder.mkdir(parents=True, exist_ok=True)
    hf = folder / "bf16-hf"
    if not hf.exists():
        flyweight.convert(source, hf, dtype="bf16")
    forms = {"bf16": hf, "int4": folder / "int4-mlx"}
    for codec in ("q4_0", "q8_0"):
        forms[codec] = folder / f"{codec}.gguf"
        recipe = folder / f"{codec}.toml"
        recipe.write_text(RECIPE.format(codec=codec), encoding="utf-8")
        if not forms[codec].exists():
            flyweight.convert(hf, forms[codec], recipe=recipe)
    if not forms["int4"].exists():
        flyweight.convert(hf, forms["int4"], to="mlx", quant="int4")
    if llama:
        forms["q4_k_m"] = folder / "q4_k_m.gguf"
        if not forms["q4_k_m"].exists():
            command = [llama, "-c", QUANTIZE, str(source), str(forms["q4_k_m"])]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return forms


def contenders(forms: dict[str, Path], llama: str | None, only: str) -> dict[str, Contender]:
    entered = {f"flyweight {form}": Contender(path) for form, path in forms.items()}
    if llama:
        shared = {form: path for form, path in forms.items() if path.suffix == ".gguf"}
        entered |= {f"llama.cpp {form}": Contender(path, LLAMA, llama) for form, path in shared.items()}
    if "bf16" in forms:
        if find_spec("transformers") and find_spec("torch"):
            entered["transformers bf16"] = Contender(forms["bf16"], TRANSFORMERS)
        else:
            print("transformers is not here: measuring without it")
    return {who: contender for who, contender in entered.items() if only in who}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama", metavar="PYTHON")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--only", metavar="TEXT", default="", help="only contenders whose name contains this")
    parser.add_argument("--as-stored", action="store_true", help="measure this GGUF file alone, into results of its own")
    parser.add_argument("--folder", type=Path, default=Path(".bench/run"), help="where the forms of the model are kept")
    options = parser.parse_args()
    llama = llama_python(options.llama)
    forms = {"as stored": options.model} if options.as_stored else made(options.folder, options.model, llama)
    load, about, title = os.getloadavg()[0], machine(), __doc__.splitlines()[0]
    print(f"{title}\n{headline(about)}\nload average {load:.1f}, {options.threads} threads", flush=True)
    entered = contenders(forms, llama, options.only)
    found = compare(entered, options.runs, options.threads)
    results = []
    for form in forms:
        for name, figures in found.items():
            ours = f"flyweight {form}"
            if ours not in figures:
                continue
            target = TARGETS.get((form, name), "")
            peers = [f"llama.cpp {form}", f"transformers {form}", *(["llama.cpp q4_0"] if form == "int4" else [])]
            beside = {who: figures[who] for who in (ours, *peers) if who in figures}
            results.append(row(f"{form}, {name}", FIGURES[name], ours, beside, target))
            print(show(results[-1]), flush=True)
    if not options.only:
        report = {
            **about,
            "title": title,
            "runs": options.runs,
            "threads": options.threads,
            "load_average": load,
            "results": results,
        }
        record(f"run-{options.model.stem}" if options.as_stored else "run", report)


if __name__ == "__main__":
    main()
