"""Core ML packages that are large: told of at once, and converted in memory that does not grow with them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from flyweight.pipeline.rows import SLAB_BYTES
from support.command_line import flyweight as run
from support.coreml_files import F16, WEIGHTS, blob_value, const, function, model, package, record, used
from support.toys import write_files

TENSOR = (1024, 2048)  # f16: 4 MiB
_BLOB = 64 + 2 * TENSOR[0] * TENSOR[1]


def sparse_package(path: Path, count: int) -> Path:
    """So many constants, whose bytes are a hole of the file."""
    offsets = [64 + at * _BLOB for at in range(count)]
    constants = [const(f"w{at}", blob_value(F16, TENSOR, offset), F16, TENSOR) for at, offset in enumerate(offsets)]
    write_files(path, package(model({"main": function([*constants, used("w0")])}), struct.pack("<II56x", count, 2)))
    with (path / WEIGHTS).open("r+b") as file:
        for offset in offsets:
            os.pwrite(file.fileno(), record(1, _BLOB - 64, offset + 64), offset)
        file.truncate(64 + count * _BLOB)
    return path


def test_a_gigabyte_is_inspected_at_once(tmp_path: Path) -> None:
    path = sparse_package(tmp_path / "x.mlpackage", 256)
    assert (path / WEIGHTS).stat().st_size > 1 << 30
    spent = []
    for _ in range(3):
        begun = time.process_time()
        done = run("inspect", path, "--json")
        spent.append(time.process_time() - begun)
        assert done.code == 0, done.said
    assert min(spent) <= 0.3, spent


CHILD = """
import json, re, sys
import flyweight, flyweight.pipeline
flyweight.convert(sys.argv[1], sys.argv[2], to="coreml", quant=sys.argv[3], jobs=2)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
print(json.dumps(int(peak[1]) * 1024))
"""


def peak(path: Path, quant: str) -> int:
    environment = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-c", CHILD, str(path), str(path.with_suffix(f".{quant}.mlpackage")), quant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout))


def test_memory_does_not_grow_with_the_package(tmp_path: Path) -> None:
    """28 more tensors of 4 MiB: nothing of them stays, whether they are copied or compressed."""
    small, large = (sparse_package(tmp_path / f"{count}.mlpackage", count) for count in (4, 32))
    for quant in ("keep", "int8"):
        assert peak(large, quant) - peak(small, quant) < 6 * SLAB_BYTES < 28 * 4 << 20
