"""`convert` GGUF → safetensors (a remux: every byte is moved and hashed) beside a plain copy of the same file.

Both end with fsync; the rounds alternate; medians, first round discarded. Two files: the demo model, where reading and
writing its 98,000 tokens and merges is half the time, and a larger one without a tokenizer, where the bytes are. There
the bound is the same as the copy's, memory and page cache, with BLAKE3 on the other core.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import flyweight
from flyweight.containers import container_named
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import CodecSpec, TensorSpec

ROUNDS = 5


def copy(source: Path, target: Path) -> None:
    """The plainest copy: read, write, sync."""
    with source.open("rb") as src, target.open("wb") as dst:
        shutil.copyfileobj(src, dst, 8 << 20)
        dst.flush()
        os.fsync(dst.fileno())


def write_large(path: Path, layers: int = 40) -> None:
    """A GGUF of q8_0 matrices, 4096 × 4096, of random bytes."""
    spec, blocks = TensorSpec((4096, 4096), DType.F32), TensorSpec((4096, 128 * 34), DType.U8)
    entries = {f"blk.{i}.w": Entry(f"blk.{i}.w", spec, CodecSpec("q8_0"), {"blocks": blocks}) for i in range(layers)}
    manifest = Manifest("gguf", entries, {"general.architecture": Typed("str", "random")}, dialect="gguf")
    placement = container_named("gguf").place(manifest, path.name)
    with path.open("wb") as file:
        for offset, chunk in placement.images[path.name].chunks:
            file.seek(offset)
            file.write(chunk)
        for seed, entry in enumerate(placement.manifest.entries.values()):
            file.seek(entry.extents["blocks"].offset)
            file.write(np.random.default_rng(seed).bytes(blocks.nbytes))
        file.truncate(placement.images[path.name].nbytes)


def compare(source: Path, folder: Path) -> None:
    size, target = source.stat().st_size, folder / "out.safetensors"
    actions: dict[str, Callable[[], object]] = {
        "plain copy": lambda: copy(source, target),
        "flyweight convert": lambda: flyweight.convert(source, target),
    }
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS + 1):
        for name, action in actions.items():
            target.unlink(missing_ok=True)
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    target.unlink()
    copied = statistics.median(seconds["plain copy"][1:])
    print(f"GGUF → safetensors, {source.name}, {size / 1e6:.0f} MB, median of {ROUNDS}")
    for name, times in seconds.items():
        middle, low, high = statistics.median(times[1:]), min(times[1:]), max(times[1:])
        print(f"  {name:20}{size / middle / 1e6:8.0f} MB/s  ({low:.3f}–{high:.3f} s)  {copied / middle:5.2f} of a plain copy")


def main(model: Path) -> None:
    with tempfile.TemporaryDirectory(dir=model.parent) as name:
        folder = Path(name)
        compare(model, folder)
        write_large(folder / "large.gguf")
        compare(folder / "large.gguf", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
