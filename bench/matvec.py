"""Products with packed weights, 4096 × 4096, two threads, beside ggml. MB/s of stored weights read.

Each run multiplies with one matrix after the other, together more than any cache holds, as a model does with its layers. With
int8 activations the weights should come as fast as memory gives them: `reading`, the maximum of as many bytes by two threads,
runs in turn with the products. On a busy machine neither means much; `core` does: one thread on 256 rows that stay in cache, by
its own CPU time, the best of many, is what the instructions allow.

ggml is measured if `--ggml DIRECTORY` names a place with its libggml-base and libggml-cpu shared libraries (the wheel of
pywhispercpp holds them); it quantises activations too, in blocks of its own. Its threads wait awake after their work and slow
what runs next: for our share of `reading`, leave it out. Options of the harness follow.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.bench.harness import Case, main
from flyweight.codecs import ggml

Array = np.ndarray[Any, Any]

SIDE = 4096
THREADS = 2
WORKING_SET = 96_000_000
ROWS_IN_CACHE = 256
GGML_TYPES = {"q4_0": 2, "q8_0": 8, "q4_k": 12, "q6_k": 14, "f16": 1, "bf16": 30}
GROUP = 64
READERS = ThreadPoolExecutor(THREADS)


def matrices(form: str, rng: np.random.Generator) -> Iterator[tuple[object, ...]]:
    """Arguments of `matvec_<form>` before x, without end."""
    while True:
        if form in kernels.BLOCKS:
            size, nbytes = kernels.BLOCKS[form]
            blocks = rng.integers(0, 256, (SIDE * SIDE // size, nbytes), dtype=np.uint8)
            for at, kind in next(codec for codec in ggml.CODECS if codec.name == form).scales:
                blocks[:, at : at + 2] = rng.uniform(1e-4, 1e-2, (len(blocks), 1)).astype(kind).view(np.uint8)
            yield (blocks.reshape(SIDE, -1),)
        elif form in ("f16", "bf16"):
            values = rng.standard_normal((SIDE, SIDE), np.float32)
            yield (values.astype(np.float16) if form == "f16" else (values.view(np.uint32) >> 16).astype(np.uint16),)
        else:
            codes = rng.integers(0, 256, (SIDE, SIDE if form.endswith("8") else SIDE // 2), dtype=np.uint8)
            scale = rng.uniform(1e-4, 1e-2, (SIDE, SIDE // GROUP)).astype(np.float16)
            if form == "palette4":
                yield (codes, rng.standard_normal(16, np.float32))
            elif form == "symmetric8":
                yield (codes, scale[:, :1].astype(np.float32), SIDE)
            else:
                yield (codes, scale, -scale, GROUP)


def size_of(arguments: tuple[object, ...]) -> int:
    return sum(part.nbytes for part in arguments if isinstance(part, np.ndarray))


class Ggml:
    """A graph of one ggml_mul_mat per matrix, run by ggml's own threads."""

    class InitParams(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    def __init__(self, folder: Path) -> None:
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
        pointer = ctypes.c_void_p
        self.base.ggml_init.argtypes, self.base.ggml_init.restype = [self.InitParams], pointer
        for name, arguments in (
            ("ggml_new_tensor_2d", [pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]),
            ("ggml_mul_mat", [pointer, pointer, pointer]),
            ("ggml_new_graph", [pointer]),
            ("ggml_get_data", [pointer]),
        ):
            getattr(self.base, name).argtypes, getattr(self.base, name).restype = arguments, pointer
        self.base.ggml_build_forward_expand.argtypes = [pointer, pointer]
        self.cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]
        self.cpu.ggml_cpu_init()

    def products(self, kind: int, weights: list[Array], x: Array, threads: int) -> tuple[Callable[[], object], Array]:
        """What multiplies x with every matrix, and the last product once that ran."""
        room = sum(w.nbytes for w in weights) + (len(weights) + 1) * x.nbytes * 4 + (64 << 20)
        context = self.base.ggml_init(self.InitParams(room, None, False))
        vector = self.base.ggml_new_tensor_2d(context, 0, x.shape[1], len(x))
        ctypes.memmove(self.base.ggml_get_data(vector), x.ctypes.data, x.nbytes)
        graph = self.base.ggml_new_graph(context)
        for w in weights:
            matrix = self.base.ggml_new_tensor_2d(context, kind, x.shape[1], len(w))
            ctypes.memmove(self.base.ggml_get_data(matrix), w.ctypes.data, w.nbytes)
            product = self.base.ggml_mul_mat(context, matrix, vector)
            self.base.ggml_build_forward_expand(graph, product)
        address = self.base.ggml_get_data(product)
        last = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (len(x), len(weights[0])))
        return lambda: self.cpu.ggml_graph_compute_with_ctx(context, graph, threads), last


def of_one_core(work: Callable[[], object], nbytes: int, runs: int = 40) -> float:
    best = min(cpu_seconds(work) for _ in range(runs))
    return round(nbytes / best / 1e6)


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def case(form: str, int8: bool, batch: int, peer: Ggml | None) -> Case:
    rng = np.random.default_rng(0)
    source = matrices(form, rng)
    first = next(source)
    weights = [first, *(next(source) for _ in range(WORKING_SET // size_of(first)))]
    x, out = rng.standard_normal((batch, SIDE), np.float32), np.empty((batch, SIDE), np.float32)
    product = getattr(kernels, f"matvec_{form}")
    mode = (int8,) if kernels.MATVEC[f"matvec_{form}"] else ()

    def ours() -> None:
        for arguments in weights:
            product(*arguments, x, out, *mode, THREADS)

    few = tuple(part[:ROWS_IN_CACHE] if isinstance(part, np.ndarray) and part.ndim == 2 else part for part in first)
    some = np.empty((batch, ROWS_IN_CACHE), np.float32)
    notes: dict[str, float | str] = {"core MB/s": of_one_core(lambda: product(*few, x, some, *mode, 1), size_of(few))}
    halves = np.split(np.ones(size_of(first) * len(weights) // 8 * 2, np.float32), 2)
    contenders: dict[str, Callable[[], object]] = {"flyweight": ours, "reading": lambda: list(READERS.map(np.max, halves))}
    if peer and form in GGML_TYPES and (int8 or not mode):
        theirs, last = peer.products(GGML_TYPES[form], [np.asarray(arguments[0]) for arguments in weights], x, THREADS)
        ours()
        theirs()
        if np.abs(out - last).max() > 0.02 * np.abs(out).max():
            sys.exit(f"{form}: our product differs from ggml's; a speed would mean nothing")
        contenders["ggml"] = theirs
        alone, _ = peer.products(GGML_TYPES[form], [np.asarray(few[0])], x, 1)
        notes["ggml core MB/s"] = of_one_core(alone, size_of(few))
    name = f"{form}{' int8' if int8 else ''}, batch {batch}"
    nbytes = size_of(first) * len(weights)
    return Case(name, nbytes, contenders, limit="read2", target="0.7× reading" if int8 and batch == 1 else "", notes=notes)


def overhead() -> str:
    """A call that has little to do: eight rows, so most of it is checks, binding and making the activations ready."""
    blocks, x, out = np.zeros((8, SIDE // 32 * 18), np.uint8), np.zeros((1, SIDE), np.float32), np.zeros((1, 8), np.float32)
    taken = sorted(cpu_seconds(lambda: kernels.matvec_q4_0(blocks, x, out, True, THREADS)) for _ in range(2000))
    return f"a call on 8 × {SIDE} weights: {taken[1000] * 1e6:.1f} µs"


def cases() -> Iterator[Case]:
    print(overhead())
    peer = Ggml(options.ggml) if options.ggml else None
    for form in ("q4_0", "q8_0", "q4_k", "q6_k", "affine4", "affine8", "symmetric8"):
        yield case(form, True, 1, peer)
    for form in ("q4_0", "q8_0", "q4_k", "q6_k", "affine4", "affine8", "symmetric8", "bf16", "f16", "palette4"):
        yield case(form, False, 1, peer)
    for form in ("q4_0", "q8_0", "q4_k", "affine4", "affine8"):
        yield case(form, True, 8, peer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--ggml", type=Path, metavar="DIRECTORY")
    options, sys.argv[1:] = parser.parse_known_args()
    main(__doc__.splitlines()[0], cases)
