"""Files put out of the page cache, memory that is really there, and the rate of the disk itself.

    BACK     most of the memory that is free is used and freed before the clock starts: the first touch of 2 GB took 9 s where
             this was written, the next 1 s, as if the host beneath had taken it back; source text, for other processes too
    ballast  all memory but some is held meanwhile, so that what was used last is what is used next
    drop     written back, then dropped; an error unless at most a hundredth of the pages stayed
    drop_everything   programs too: needs the right to
    plain    what a program does that reads: 8 MB at a time, through the cache; the better of one reader and of two
    direct   what the disk can do: two readers of 4 MB past the cache, into the same 8 MB of memory again and again

    page_cache.py ROOT EXTENTS.json MANNER      milliseconds for these parts of files, in a process of its own

Where the host beneath caches the disk, that is part of all of them.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.foundation.manifest import Extent

__all__ = ["BACK", "back", "ballast", "drop", "drop_everything", "files_of", "nbytes_of", "read_ms", "write_rate"]

_PAGE = mmap.PAGESIZE
_MANNERS = {"plain 1": (1, 8 << 20, 0), "plain 2": (2, 8 << 20, 0), "direct": (2, 4 << 20, os.O_DIRECT)}


BACK = """
import mmap, re

def memory_there(kind):
    return 1024 * int(re.search(rf"{kind}: +([0-9]+) kB", open("/proc/meminfo").read())[1])

def used(nbytes):
    # memory that has been written to, in large pages
    held = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.madvise(mmap.MADV_HUGEPAGE)
    try:
        held.madvise(23)  # MADV_POPULATE_WRITE, Linux 5.14
    except OSError:
        held[:: mmap.PAGESIZE] = bytes(-(-nbytes // mmap.PAGESIZE))
    return held

def back():
    # the host does not take it again within two seconds
    used(memory_there("MemFree") * 15 // 16).close()
"""
_HERE: dict[str, Any] = {}
exec(BACK, _HERE)
back: Callable[[], None] = _HERE["back"]


def files_of(place: Path) -> list[Path]:
    return [path for path in sorted(place.rglob("*")) if path.is_file()] if place.is_dir() else [place]


def nbytes_of(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _resident(path: Path) -> int:
    """Pages of a file that are in memory."""
    size = path.stat().st_size
    if not size:
        return 0
    mapped = np.memmap(path, np.uint8, "r")
    there = np.zeros(-(-size // _PAGE), np.uint8)
    if ctypes.CDLL(None).mincore(
        ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(there.ctypes.data)
    ):
        raise OSError("mincore failed")
    return int((there & 1).sum())


def drop(files: Sequence[Path]) -> None:
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)  # only clean pages can be dropped
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
    stayed = _PAGE * sum(map(_resident, files))
    if stayed > nbytes_of(files) // 100:
        raise RuntimeError(f"{stayed} bytes of {files[0].parent} stay in memory: someone else uses them")


def drop_everything() -> bool:
    """Programs too, as after a start of the machine, and memory that is there; False if that is not allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError:
        return False
    back()
    return True


@contextmanager
def ballast(leave: int) -> Iterator[None]:
    """Hold all memory but so much."""
    most = _HERE["memory_there"]("MemAvailable") - leave
    held = _HERE["used"](most) if most > 0 else None
    try:
        yield
    finally:
        if held:
            held.close()


def read_ms(root: Path, extents: Iterable[Extent], scratch: Path) -> dict[str, float]:
    """How long the disk takes for these parts of files, which are dropped before; each manner in a process of its own."""
    parts = list(extents)
    files = [root / name for name in dict.fromkeys(part.file for part in parts)]
    scratch.write_text(json.dumps(parts), encoding="utf-8")
    found: dict[str, float] = {}
    for manner in _MANNERS:
        drop(files)
        command = [sys.executable, __file__, str(root), str(scratch), manner]
        took = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        how = manner.split()[0]
        found[how] = min(took, found.get(how, took))
    return found


def _timed(parts: Sequence[Extent], root: Path, readers: int, piece: int, flags: int) -> float:
    buffers = [mmap.mmap(-1, piece + 2 * _PAGE) for _ in range(readers)]
    for buffer in buffers:
        buffer.write(bytes(len(buffer)))
    descriptors = {name: os.open(root / name, os.O_RDONLY | flags) for name in dict.fromkeys(part.file for part in parts)}
    wanted = list(_aligned(parts, piece))

    def read(who: int) -> None:
        for file, offset, nbytes in islice(wanted, who, None, readers):
            os.preadv(descriptors[file], [memoryview(buffers[who])[:nbytes]], offset)

    begun = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(read, range(readers)))
    took = time.perf_counter() - begun
    for descriptor in descriptors.values():
        os.close(descriptor)
    return took


def _aligned(parts: Iterable[Extent], piece: int) -> Iterator[tuple[str, int, int]]:
    for part in parts:
        first, last = part.offset // _PAGE * _PAGE, -(-part.end // _PAGE) * _PAGE
        for at in range(first, last, piece):
            yield part.file, at, min(piece, last - at)


def write_rate(folder: Path, nbytes: int) -> float:
    """MB/s of writing a new file and having it on the disk."""
    path, piece = folder / "write-rate", np.random.default_rng(0).bytes(8 << 20)
    begun = time.perf_counter()
    try:
        with path.open("wb") as file:
            for _ in range(nbytes // len(piece)):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return nbytes / (time.perf_counter() - begun) / 1e6
    finally:
        path.unlink()


def main(root: str, extents: str, manner: str) -> None:
    parts = [Extent(*part) for part in json.loads(Path(extents).read_text("utf-8"))]
    back()
    print(1e3 * _timed(parts, Path(root), *_MANNERS[manner]))


if __name__ == "__main__":
    main(*sys.argv[1:])
