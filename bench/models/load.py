"""Opening a model of 3.1 GB (bf16, the shape of Qwen2.5-1.5B) until it has answered one token, its file in the page cache.

    open           the call that loads; the imports it needs are made before
    first forward  one token through all layers, which reads every weight once
    ready          both
    added          memory of its own that this took, MB; pages of a mapped file can be dropped and are not counted

The others load the same weights where they are installed: transformers, mlx-lm on the CPU, and llama.cpp a GGUF file of them.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

import flyweight
from bench import record
from bench.models.engines import LLAMA, MLX, TRANSFORMERS, llama_python
from bench.models.large_model import large_model
from flyweight.bench import headline, machine
from flyweight.bench.running import FLYWEIGHT, MEMORY, Contender, compare, row, show
from flyweight.runtime.model import usable_cores

UNITS = {"open": "ms", "first forward": "ms", "ready": "ms", "added": "MB"}
TARGETS = {"ready": "at most 350 ms", "added": "at most 160 MB"}

PROBE = (
    MEMORY
    + r"""
def main(model, started, threads, *_):
    before, begun = memory("Private_Dirty"), time.perf_counter()
    engine = load(model, int(threads))
    opened = time.perf_counter()
    engine.feed([1])
    engine.best()
    ready = time.perf_counter()
    figures = {"open": 1e3 * (opened - begun), "first forward": 1e3 * (ready - opened), "ready": 1e3 * (ready - begun)}
    after = memory("Private_Dirty")
    print(json.dumps(figures | {"added": None if after is None else after - before}))

main(*sys.argv[1:])
"""
)


def contenders(folder: Path, llama: str | None) -> dict[str, Contender]:
    entered = {"flyweight": Contender(folder, "import flyweight.runtime\n" + FLYWEIGHT, probe=PROBE)}
    if llama:
        gguf = folder.with_name(f"{folder.name}.gguf")
        if not gguf.exists():
            flyweight.convert(folder, gguf)
        entered["llama.cpp"] = Contender(gguf, "import llama_cpp, numpy\n" + LLAMA, llama, PROBE)
    peers = {"transformers": ("import torch\nfrom transformers import Qwen2ForCausalLM\n" + TRANSFORMERS, "torch"),
             "mlx-lm": ("import mlx_lm.utils\nimport mlx_lm.models.qwen2\n" + MLX, "mlx_lm")}  # fmt: skip
    for name, (program, package) in peers.items():
        if find_spec(package):
            entered[name] = Contender(folder, program, probe=PROBE)
        else:
            print(f"{name} is not here: measuring without it")
    return entered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", metavar="PYTHON")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    entered = contenders(large_model(), llama_python(options.llama))
    about, title = machine(), __doc__.splitlines()[0]
    print(f"{title}\n{headline(about)}\nload average {os.getloadavg()[0]:.1f}, {options.threads} threads", flush=True)
    for contender in entered.values():
        contender.run(options.threads)  # warms the page cache
    found = compare(entered, options.runs, options.threads)
    results = [row(name, UNITS[name], "flyweight", figures, TARGETS.get(name, "")) for name, figures in found.items()]
    print(*map(show, results), sep="\n")
    report = {**about, "title": title, "runs": options.runs, "threads": options.threads, "results": results}
    record("load", report)


if __name__ == "__main__":
    main()
