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

from bench import record
from bench.models.large_model import large_model
from flyweight.bench import headline, machine
from flyweight.bench.running import row, show, spread

CONTEXT = 64

CHILD = """
import json, os, sys, time
from flyweight.runtime import open_model, peak_rss
from flyweight.runtime.model import _BASE_RAM

folder, context = sys.argv[1], int(sys.argv[2])
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

with open_model(folder, context=context, max_ram=1 << 30) as model:
    assert model.streamed, "the model is held whole"
    tensors, cache = model.decoder.tensors, model.cache()
    ours = tensors.nbytes / seconds(lambda: model.decoder.forward([1], cache)) / 1e6
    bound = (_BASE_RAM + 2 * tensors.buffer_nbytes + cache.nbytes) / 1e6
    time.sleep(1)  # by now the first layer of the next token is there, which nobody will ask for
theirs = os.fstat(file).st_size / seconds(plainly) / 1e6
print(json.dumps({"flyweight": ours, "plain reads": theirs, "peak": peak_rss() / 1e6, "bound": bound}))
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
    command = [sys.executable, "-c", CHILD, str(folder), str(CONTEXT)]
    found = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout) for _ in range(options.runs)
    ]
    taken = {name: spread([one[name] for one in found]) for name in found[0]}
    bound = taken.pop("bound")["median"]
    memory = {"flyweight": taken.pop("peak")}
    results = [
        row("streamed layers", "MB/s", "flyweight", taken, "0.9× plain reads"),
        row("peak memory", "MB", "flyweight", memory, f"at most {bound:.0f} MB"),
    ]
    for result in results:
        print(show(result))
    report = {**about, "title": title, "runs": options.runs, "results": results}
    record("stream", report)


if __name__ == "__main__":
    main()
