"""How fast stored weights become numbers, beside gguf-py and libggml, in one process. MB/s of output.

flyweight and libggml fill a buffer they are given, as flyweight's pipeline does; gguf-py's interface makes a new array. Two
sizes: 8 MB is the slab the pipeline decodes at a time; 64 MB is a whole matrix, where writing to memory is the bound. Rates
of bf16 count its own bytes, half of those of f32. "two threads" decodes one half of the rows in each, beside what two threads
fill (write2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

from bench.kernels.peers import dequantizer, gguf_py
from flyweight import kernels
from flyweight.bench import Case, main
from flyweight.codecs import ggml
from flyweight.codecs.affine import Affine
from flyweight.codecs.codec import Parts
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec

BLOCKS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
AFFINE = (
    Affine(8, 64, "symmetric", "bf16"),
    Affine(8, 64, scale="f16"),
    Affine(4, 64, scale="f16"),
    Affine(4, 64, "symmetric", "bf16"),
    Affine(3, 64, scale="f16"),
    Affine(2, 64, scale="f16"),
)
COLUMNS = 4096
Array = np.ndarray[Any, Any]
Work = Callable[[], object]
POOL = ThreadPoolExecutor(2)


def ordinary_blocks(name: str, rows: int) -> Array:
    """Rows of random codes with scales as weights have them. (rows, bytes of a row)"""
    size, nbytes = kernels.BLOCKS[name]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (rows * COLUMNS // size, nbytes), dtype=np.uint8)
    for at, kind in next(codec for codec in ggml.CODECS if codec.name == name).scales:
        scales = rng.uniform(1e-4, 1e-2, (len(blocks), 1)).astype(kind)
        blocks[:, at : at + scales.itemsize] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def halves(decode: Callable[..., object], *arrays: Array) -> Work:
    """`decode` on both halves of the arrays' rows at once."""
    middle = len(arrays[0]) // 2
    parts = [[array[:middle] for array in arrays], [array[middle:] for array in arrays]]
    return lambda: list(POOL.map(lambda part: decode(*part), parts))


def block_cases(megabytes: int) -> Iterator[Case]:
    for name in BLOCKS:
        size, nbytes = kernels.BLOCKS[name]
        rows = ordinary_blocks(name, megabytes * 1_000_000 // (4 * COLUMNS))
        blocks, decode = rows.reshape(-1, nbytes), getattr(kernels, f"decode_{name}")
        ours, theirs = (np.zeros((len(blocks), size), np.float32) for _ in range(2))
        decode(blocks, ours)
        contenders: dict[str, Work] = {"flyweight": lambda d=decode, b=blocks, o=ours: d(b, o)}
        if (work := dequantizer(name, blocks, theirs)) is not None:
            work()
            if not np.array_equal(ours, theirs):
                sys.exit(f"{name}: our values differ from libggml's; a speed would mean nothing")
            contenders["libggml"] = work
        if (gguf := gguf_py()) is not None:
            kind = gguf.GGMLQuantizationType[name.upper()]
            if not np.array_equal(ours.ravel(), gguf.quants.dequantize(rows, kind).ravel()):
                sys.exit(f"{name}: our values differ from gguf-py's; a speed would mean nothing")
            contenders["gguf-py"] = lambda r=rows, k=kind, g=gguf: g.quants.dequantize(r, k)
        share = 0.4 if name.endswith("_k") else 0.7
        yield Case(f"{name}, {megabytes} MB", ours.nbytes, contenders, target=f"20× gguf-py, 1× libggml, {share} of write")
        narrow = np.zeros(ours.shape, ml_dtypes.bfloat16)
        yield Case(
            f"{name} to bf16, {megabytes // 2} MB",
            narrow.nbytes,
            {"flyweight": lambda d=decode, b=blocks, o=narrow: d(b, o)},
            target=f"{share} of write",
        )
        for out in (ours, narrow) if megabytes == 64 else ():
            work = {"flyweight": halves(decode, blocks, out)}
            yield Case(f"{name} to {out.dtype}, two threads", out.nbytes, work, "write2", f"{share} of write2")


def affine_halves(codec: Affine, parts: Parts, out: Array) -> Work:
    """`codec.decode` on both halves of the rows at once."""
    names = list(parts)

    def decode(room: Array, *stored: Array) -> None:
        codec.decode(TensorSpec(room.shape, DType.F32), dict(zip(names, stored, strict=True)), room)

    return halves(decode, out, *parts.values())


def affine_cases(megabytes: int) -> Iterator[Case]:
    shape = (megabytes * 1_000_000 // (4 * COLUMNS), COLUMNS)
    spec = TensorSpec(shape, DType.F32)
    values = np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(0.02)
    for codec in AFFINE:
        parts = codec.encode(spec, values)
        for dtype in (np.float32, ml_dtypes.bfloat16):
            out = np.zeros(shape, dtype)
            label = f"int{codec.bits} {codec.form} {codec.scale} → {out.dtype}"
            yield Case(
                f"{label}, {out.nbytes // 1_000_000} MB",
                out.nbytes,
                {"flyweight": lambda c=codec, p=parts, o=out: c.decode(spec, p, o)},
                target="0.7 of write",
            )
            if megabytes == 64:
                work = {"flyweight": affine_halves(codec, parts, out)}
                yield Case(f"{label}, two threads", out.nbytes, work, "write2", "0.7 of write2")


def cases() -> Iterator[Case]:
    for megabytes in (8, 64):
        yield from block_cases(megabytes)
        yield from affine_cases(megabytes)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=11)
