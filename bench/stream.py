"""A model that is read layer by layer (`--max-ram`): how close reading comes to the disk's own rate. MB/s of weights.

Both sides read the same bytes of the same file, which is dropped from the page cache first: one forward pass of a token, and
plain reads of 8 MB from beginning to end, by turns. Where the host beneath caches the disk, that is part of both. Memory must
stay within two layers, the key-value cache and the base that `--max-ram` counts with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from large_model import large_model

from flyweight.bench import headline, machine
from flyweight.bench.running import row, show, spread

RESULTS = Path(__file__).parent / "results"
CONTEXT = 64

CHILD = """
import json, os, sys, time
from flyweight.runtime import open_model, peak_rss
from flyweight.runtime.model import _BASE_RAM, usable_cores

folder, runs, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = os.open(os.path.join(folder, "model.safetensors"), os.O_RDONLY)
piece = memoryview(bytearray(8 << 20))

def seconds(work):
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun

def plainly():
    at = 0
    while count := os.preadv(file, [piece], at):
        at += count

model = open_model(folder, context=context, max_ram=1 << 30)
assert model.streamed, "this machine would hold the model whole"
tensors, cache = model.decoder.tensors, model.cache()
nbytes = sum(tensors._nbytes(piece) for piece in tensors._pieces)
bound = _BASE_RAM + 2 * tensors.buffer_nbytes + cache.nbytes
rates = {"flyweight": [], "plain reads": []}
for _ in range(runs):
    cache.truncate(0)
    tensors._next = None
    rates["flyweight"].append(nbytes / seconds(lambda: model.decoder.forward([1], cache)) / 1e6)
    rates["plain reads"].append(os.fstat(file).st_size / seconds(plainly) / 1e6)
print(json.dumps({"rates": rates, "peak": peak_rss() / 1e6, "bound": bound / 1e6}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if not hasattr(os, "posix_fadvise"):
        sys.exit("this system cannot drop a file from its cache")
    folder = large_model()
    about, title = machine(), __doc__.splitlines()[0]
    print(f"{title}\n{headline(about)}\nload average {os.getloadavg()[0]:.1f}", flush=True)
    command = [sys.executable, "-c", CHILD, str(folder), str(options.runs), str(CONTEXT)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    rates = {who: spread(values) for who, values in found["rates"].items()}
    results = [
        row("streamed layers", "MB/s", "flyweight", rates, "0.9× plain reads"),
        row("peak memory", "MB", "flyweight", {"flyweight": spread([found["peak"]])}, f"at most {found['bound']:.0f} MB"),
    ]
    for result in results:
        print(show(result))
    RESULTS.mkdir(exist_ok=True)
    report = {**about, "title": title, "runs": options.runs, "results": results}
    (RESULTS / "stream.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
