"""Products with packed weights, 4096 × 4096, two threads, and those of a small decoder. MB/s of stored weights read.

Each run multiplies with one matrix after the other, together more than any cache holds, as a model does with its layers. With
int8 activations the weights should come as fast as memory gives them: `reading`, the maximum of as many bytes by two threads,
runs in turn with the products. On a busy machine neither means much; `core` does: one thread on 256 rows that stay in cache, by
its own CPU time, the best of many, is what the instructions allow.

`token` and `prefill` are all products of SmolLM2-135M in q4_0, its head in q8_0, for one token and for a prompt of 512.

With `--ggml DIRECTORY`, a place with the libggml-base and libggml-cpu shared libraries (the wheel of pywhispercpp has them),
the same products are ggml's, which rounds activations too, in blocks of its own; ours then only check its results. Its threads
wait awake after their work and slow what runs next, so the two sides are two runs. Options of the harness follow.
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

import ml_dtypes
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
READERS = ThreadPoolExecutor(THREADS)


def matrix(form: str, rng: np.random.Generator, rows: int = SIDE, columns: int = SIDE, group: int = 64) -> kernels.Matrix:
    if form in kernels.BLOCKS:
        size, nbytes = kernels.BLOCKS[form]
        blocks = rng.integers(0, 256, (rows * columns // size, nbytes), dtype=np.uint8)
        for at, kind in next(codec for codec in ggml.CODECS if codec.name == form).scales:
            blocks[:, at : at + 2] = rng.uniform(1e-4, 1e-2, (len(blocks), 1)).astype(kind).view(np.uint8)
        if form == "mxfp4":
            blocks[:, 0] = rng.integers(110, 120, len(blocks))
        return kernels.matrix(form, blocks=blocks.reshape(rows, -1))
    if form in ("f16", "bf16"):
        values = rng.standard_normal((rows, columns), np.float32)
        return kernels.matrix(form, weights=values.astype(np.float16 if form == "f16" else ml_dtypes.bfloat16))
    codes = rng.integers(0, 256, (rows, columns * int(form[-1]) // 8), dtype=np.uint8)
    if form.startswith("stepped"):
        steps = rng.integers(0, 256, (rows, columns // group * 3 // 2), dtype=np.uint8)
        common = rng.uniform(1e-6, 1e-4, (rows, 2)).astype(np.float16)
        return kernels.matrix(form, codes=codes, steps=steps, scale=common, length=group)
    scale = rng.uniform(1e-4, 1e-2, (rows, columns // group)).astype(np.float16)
    if form == "palette4":
        return kernels.matrix(form, codes=codes, table=rng.standard_normal(16, np.float32))
    if form == "symmetric8":
        return kernels.matrix(form, codes=codes, scale=scale[:, :1].astype(np.float32))
    return kernels.matrix(form, codes=codes, scale=scale, bias=-scale)


def size_of(weights: kernels.Matrix) -> int:
    return sum(part.nbytes for part in weights.parts)


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


def case(form: str, int8: bool, batch: int, peer: Ggml | None, group: int = 64) -> Case:
    rng = np.random.default_rng(0)
    first = matrix(form, rng, group=group)
    weights = [first, *(matrix(form, rng, group=group) for _ in range(WORKING_SET // size_of(first)))]
    x, out = rng.standard_normal((batch, SIDE), np.float32), np.empty((batch, SIDE), np.float32)

    def ours() -> None:
        for one in weights:
            kernels.multiply((one,), x, out, int8=int8, threads=THREADS)

    few, some = first[:ROWS_IN_CACHE], np.empty((batch, ROWS_IN_CACHE), np.float32)
    work: Callable[[], object] = ours
    alone: Callable[[], object] = lambda: kernels.multiply((few,), x, some, int8=int8, threads=1)  # noqa: E731
    if peer:
        work, last = peer.products(GGML_TYPES[form], [one.parts[0] for one in weights], x, THREADS)
        ours()
        work()
        if np.abs(out - last).max() > 0.02 * np.abs(out).max():
            sys.exit(f"{form}: our product differs from ggml's; a speed would mean nothing")
        alone, _ = peer.products(GGML_TYPES[form], [few.parts[0]], x, 1)
    halves = np.split(np.ones(size_of(first) * len(weights) // 8 * 2, np.float32), 2)
    contenders = {"ggml" if peer else "flyweight": work, "reading": lambda: list(READERS.map(np.max, halves))}
    name = f"{form}{f' by {group}' if form.startswith(('affine', 'stepped')) else ''}{' int8' if int8 else ''}, batch {batch}"
    notes: dict[str, float | str] = {"core MB/s": of_one_core(alone, size_of(few))}
    target = "0.7× reading" if int8 and batch == 1 else ""
    return Case(name, size_of(first) * len(weights), contenders, limit="read2", target=target, notes=notes)


LAYERS, HIDDEN, HEADS, INNER, TOKENS = 30, 576, (576, 192, 192), 1536, 49152


def decoder(form: str, batch: int) -> Case:
    """The products of one pass through SmolLM2-135M: 121 calls, the head for the last token alone."""
    rng = np.random.default_rng(0)
    shapes = [*((rows, HIDDEN) for rows in HEADS), (HIDDEN, HIDDEN), (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    layers = [[matrix(form, rng, rows, columns) for rows, columns in shapes] for _ in range(LAYERS)]
    head = matrix("q8_0", rng, TOKENS, HIDDEN)
    x, gain = rng.standard_normal((batch, HIDDEN), np.float32), np.ones(HIDDEN, np.float32)
    mixed, inner = np.empty((batch, sum(HEADS)), np.float32), np.empty((batch, INNER), np.float32)
    out, logits = np.empty((batch, HIDDEN), np.float32), np.empty((1, TOKENS), np.float32)

    def one_pass() -> None:
        for q, k, v, o, gate, up, down in layers:
            kernels.multiply((q, k, v), x, mixed, gain=gain, eps=1e-5, threads=THREADS)
            kernels.multiply((o,), x, out, threads=THREADS)
            kernels.gated(gate, up, x, inner, gain=gain, eps=1e-5, threads=THREADS)
            kernels.multiply((down,), inner, out, threads=THREADS)
        kernels.multiply((head,), x[-1:], logits, gain=gain, eps=1e-5, threads=THREADS)

    taken = min(seconds(one_pass) for _ in range(30 if batch == 1 else 3))
    nbytes = sum(size_of(one) for layer in layers for one in layer) + size_of(head)
    name = f"{form} {'token' if batch == 1 else f'prefill of {batch}'}"
    return Case(name, nbytes, {"flyweight": one_pass}, notes={"tokens/s": round(batch / taken, 1)})


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def overhead() -> str:
    """A call that has little to do: eight rows, so most of it is checks, binding and making the activations ready."""
    few, x, out = (
        kernels.matrix("q4_0", blocks=np.zeros((8, 324), np.uint8)),
        np.zeros((1, 576), np.float32),
        np.zeros((1, 8), np.float32),
    )
    taken = sorted(seconds(lambda: kernels.multiply((few,), x, out, threads=THREADS)) for _ in range(2000))
    return f"a call on 8 × 576 weights: {taken[1000] * 1e6:.1f} µs"


def cases() -> Iterator[Case]:
    peer = Ggml(options.ggml) if options.ggml else None
    whole, single = ("q4_0", "q8_0", "q4_k", "q6_k"), ("bf16", "f16")
    if not peer:
        print(overhead())
        for form in ("q4_0", "q4_1", "affine4"):
            yield decoder(form, 1)
            yield decoder(form, 512)
        whole += ("q4_1", "q5_0", "q5_1", "q5_k", "affine4", "affine8", "symmetric8")
        whole += ("q2_k", "q3_k", "iq4_nl", "iq4_xs", "mxfp4", *(f"affine{bits}" for bits in (3, 5, 6)))
        single += (*whole, "palette4")
    for form in whole:
        yield case(form, True, 1, peer)
    if not peer:
        for form in ("affine4", *(f"stepped{bits}" for bits in range(2, 8))):
            yield case(form, True, 1, peer, group=32)
    for form in single:
        yield case(form, False, 1, peer)
    for form in whole:
        yield case(form, True, 8, peer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--ggml", type=Path, metavar="DIRECTORY")
    options, sys.argv[1:] = parser.parse_known_args()
    main(__doc__.splitlines()[0], cases)
