"""How fast floats become K blocks, beside ggml's own encoder, in one process on one thread. MB/s of f32 input.

ggml's encoder comes from the wheel of `pywhispercpp`, which carries libggml-base; it is downloaded into .bench, never
installed.
The notes give both relative errors: speed means nothing without them.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.bench.harness import Case, main

PACKAGE = "pywhispercpp==1.5.1"
FOLDER = Path(".bench/ggml")
GGML_TYPES = {"q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14, "iq4_xs": 23, "iq4_nl": 20}
ROWS, COLUMNS = 256, 4096
Array = np.ndarray[Any, Any]


def libggml() -> ctypes.CDLL:
    if not list(FOLDER.glob("libggml-base.so*")):
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", str(FOLDER)]
        subprocess.run([*command, PACKAGE], check=True)
        (wheel,) = FOLDER.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(FOLDER)
    library = ctypes.CDLL(str(next(FOLDER.glob("libggml-base.so*")).resolve()))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    return library


def relative_error(name: str, blocks: Array, values: Array) -> float:
    out = np.empty(values.shape, np.float32)
    getattr(kernels, f"decode_{name}")(blocks, out)
    return float(np.linalg.norm((out - values).astype(np.float64)) / np.linalg.norm(values.astype(np.float64)))


def cases() -> Iterator[Case]:
    library = libggml()
    matrix = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    for name, kind in GGML_TYPES.items():
        size = kernels.BLOCKS[name][0]
        values, weights = matrix.reshape(-1, size), np.ones((1, size), np.float32)
        ours, theirs = (np.zeros((len(values), kernels.BLOCKS[name][1]), np.uint8) for _ in range(2))
        encode = getattr(kernels, f"encode_{name}")

        def by_ggml(k: int = kind, to: Array = theirs) -> None:
            library.ggml_quantize_chunk(k, matrix.ctypes.data, to.ctypes.data, 0, ROWS, COLUMNS, None)

        encode(values, weights, ours)
        by_ggml()
        errors = [relative_error(name, blocks, values) for blocks in (ours, theirs)]
        yield Case(
            name,
            values.nbytes,
            {"flyweight": lambda e=encode, v=values, w=weights, o=ours: e(v, w, o), "libggml": by_ggml},
            limit="read",
            target="1× libggml, error no larger",
            notes={"error_%": round(100 * errors[0], 3), "error_ggml_%": round(100 * errors[1], 3)},
        )


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=5)
