"""Closes what threads are reading from, at random moments, while other files take the descriptors that become free.

    python closing_driver.py FOLDER KIND ROUNDS SEED

Every reader must end in "is closed", and whatever it read before must be right. Prints how many reads were right.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flyweight
from flyweight.checkpoint import open_checkpoint
from flyweight.runtime import open_model
from flyweight.sources import FileSource, open_bundle

READERS = 4
WORDS = 1 << 20
SIZES = (0, 1, 8, 4096, 1 << 16, 1 << 20)

Read = Callable[[random.Random], bool]
"""Reads something at random; whether it was right."""
Opened = tuple[Any, list[Read]]
"""What is closed, and ways to read from it."""


def words(begin: int, nbytes: int) -> bytes:
    """What a file holds from a byte on: words that say where they are, so that no other file's bytes would do."""
    first, last = begin // 8, (begin + nbytes) // 8 + 1
    raw = (np.arange(first, last, dtype="<u8") * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)).tobytes()
    return raw[begin - 8 * first :][:nbytes]


def readers_of(source: Any, size: int) -> list[Read]:
    def place(draw: random.Random) -> tuple[int, int]:
        nbytes = draw.choice(SIZES)
        return draw.randrange(size - nbytes), nbytes

    def read(draw: random.Random) -> bool:
        at, nbytes = place(draw)
        return bytes(source.read(at, nbytes)) == words(at, nbytes)

    def read_into(draw: random.Random) -> bool:
        at, nbytes = place(draw)
        buffer = bytearray(nbytes)
        source.read_into(at, memoryview(buffer))
        return buffer == words(at, nbytes)

    def hint(draw: random.Random) -> bool:
        source.expect(*place(draw))
        return source.in_memory(0) in (True, False) and source.unchanged()

    return [read, read_into, hint]


def file(folder: Path) -> Opened:
    source = FileSource(folder / "words")
    return source, readers_of(source, source.size)


def bundle(folder: Path) -> Opened:
    """More members than stay open, so that closed ones would be opened again."""
    opened = open_bundle(folder / "many")
    names = list(opened)

    def read(draw: random.Random) -> bool:
        name = draw.choice(names)
        return bytes(opened[name].read(0, 100)) == words(int(name), 100)

    return opened, [read]


def checkpoint_at(path: Path) -> Callable[[Path], Opened]:
    expected: dict[str, Any] = {}

    def opened(folder: Path) -> Opened:
        found = open_checkpoint(folder / path)
        if not expected:
            with open_checkpoint(folder / path) as whole:
                expected.update((name, (np.array(whole[name]), _bytes(whole.encoded(name)))) for name in whole)
        names = list(found)

        def values(draw: random.Random) -> bool:
            name = draw.choice(names)
            return np.array_equal(found[name], expected[name][0])

        def stored(draw: random.Random) -> bool:
            name = draw.choice(names)
            return _bytes(found.encoded(name)) == expected[name][1]

        return found, [values, stored]

    return opened


def _bytes(tensor: Any) -> bytes:
    return b"".join(part.tobytes() for part in tensor.parts.values())


def model(folder: Path) -> Opened:
    opened = open_model(folder / "toy", threads=2)
    with open_model(folder / "toy", threads=2) as other:
        expected = other.decoder.forward([1, 2, 3], other.cache()).copy()

    def forward(draw: random.Random) -> bool:
        return np.array_equal(opened.decoder.forward([1, 2, 3], opened.cache()), expected)

    return opened, [forward]


KINDS: dict[str, Callable[[Path], Opened]] = {
    "file": file,
    "bundle": bundle,
    "checkpoint": checkpoint_at(Path("toy")),
    "npy-dir": checkpoint_at(Path("npy")),
    "zstd": checkpoint_at(Path("zst")),
    "model": model,
}


def prepare(folder: Path) -> None:
    from backports import zstd

    from support.toys import write_toy_llama

    (folder / "words").write_bytes(words(0, 8 * WORDS))
    (folder / "many").mkdir()
    for at in range(0, 8 * 150, 8):
        (folder / "many" / str(at)).write_bytes(words(at, 100))
    toy = write_toy_llama(folder / "toy")
    flyweight.convert(toy, folder / "npy", to="npy-dir", quant="int8")
    flyweight.convert(toy, folder / "zst", to="npy-dir", quant="int8")
    for array in (folder / "zst" / "tensors").glob("*.npy"):
        array.with_suffix(".npy.zst").write_bytes(zstd.compress(array.read_bytes()))
        array.unlink()
    (folder / "other").write_bytes(b"\xff" * 8 * WORDS)


def one_round(opened: Opened, other: Path, draw: random.Random) -> int:
    """Readers at work, then `close`: how many reads were right. Ends the program if one was not, or goes on after it."""
    held, ways = opened
    right, wrong, ended = itertools.count(), list[str](), list[str]()
    begun = threading.Barrier(READERS + 2)

    def work(seed: int) -> None:
        own = random.Random(seed)
        begun.wait()
        while not wrong:
            way = own.choice(ways)
            try:
                if not way(own):
                    wrong.append(f"{way.__name__} gave other bytes")
                next(right)
            except ValueError as error:
                if not str(error).endswith("is closed"):
                    wrong.append(repr(error))
                ended.append(str(error))
                return
            except BaseException as error:
                wrong.append(repr(error))
                raise

    def occupy() -> None:
        """Open other files as soon as there is a free number."""
        begun.wait()
        taken = list[int]()
        while len(ended) < READERS and not wrong:
            taken.append(os.open(other, os.O_RDONLY))
            if len(taken) > 20:
                os.close(taken.pop(0))
        for number in taken:
            os.close(number)

    threads = [threading.Thread(target=work, args=(draw.randrange(1 << 30),)) for _ in range(READERS)]
    threads.append(threading.Thread(target=occupy))
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(draw.uniform(0, 0.02))
    held.close()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            raise SystemExit("a reader did not end")
    if wrong:
        raise SystemExit("; ".join(wrong))
    return next(right)


def main(folder: Path, kind: str, rounds: int, seed: int) -> None:
    draw = random.Random(seed)
    sys.setswitchinterval(1e-5)
    total = sum(one_round(KINDS[kind](folder), folder / "other", draw) for _ in range(rounds))
    print(total)


if __name__ == "__main__":
    if sys.argv[2] == "prepare":
        prepare(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
