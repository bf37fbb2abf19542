"""`convert` GGUF → safetensors (a remux: every byte moves, every byte is hashed) beside a plain copy of the same file.

Both end with fsync. Five rounds, taken in turns; medians. What bounds us is the copy itself: the same bytes are read
from the page cache and written to the page cache, and BLAKE3 runs beside it on the other core.
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

import flyweight


def copy(source: Path, target: Path) -> None:
    """The plainest copy: read, write, sync."""
    with source.open("rb") as src, target.open("wb") as dst:
        shutil.copyfileobj(src, dst, 8 << 20)
        dst.flush()
        os.fsync(dst.fileno())


def clock(action: Callable[[], object], target: Path) -> float:
    target.unlink(missing_ok=True)
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main(source: Path, rounds: int = 5) -> None:
    size = source.stat().st_size
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        target = Path(folder) / "out.safetensors"
        actions: dict[str, Callable[[], object]] = {
            "plain copy": lambda: copy(source, target),
            "flyweight convert": lambda: flyweight.convert(source, target),
        }
        seconds: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(rounds + 1):
            for name, action in actions.items():
                seconds[name].append(clock(action, target))
    copied = statistics.median(seconds["plain copy"][1:])
    print(f"GGUF → safetensors, {size / 1e6:.0f} MB, {rounds} rounds, first discarded")
    for name, times in seconds.items():
        middle, low, high = statistics.median(times[1:]), min(times[1:]), max(times[1:])
        print(f"  {name:20}{size / middle / 1e6:8.0f} MB/s  ({low:.3f}–{high:.3f} s)  {copied / middle:5.2f} of a plain copy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
