"""How fast weights are quantized by nearest rounding, beside libggml, on one thread and on two. MB/s of f32 input.

From bf16 libggml widens the rows first, as llama.cpp's quantizer does, and both rates count the values as f32 would be. On two
threads each takes one half of the rows, on either side. The affine grids have no counterpart in libggml: they stand beside
its block type of as many bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

from bench.kernels.peers import quantizer, quantizer_of_bf16
from flyweight import kernels
from flyweight.bench.harness import Case, main
from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.codec import Codec
from flyweight.foundation.tensor import CodecSpec

SHAPE = (512, 4096)  # 8 MB: the pipeline's slab
Array = np.ndarray[Any, Any]
Work = Callable[[], object]
POOL = ThreadPoolExecutor(2)
PAIRS: tuple[tuple[Codec, str], ...] = (
    (codec_for(CodecSpec("q8_0")), "q8_0"),
    (codec_for(CodecSpec("q4_0")), "q4_0"),
    (codec_for(CodecSpec("q4_1")), "q4_1"),
    (Affine(8, 64, "symmetric", "bf16"), "q8_0"),
    (Affine(8, 64, scale="f16"), "q8_0"),
    (Affine(4, 64, "symmetric", "f16"), "q4_0"),
    (Affine(4, 64, scale="f16"), "q4_0"),
)


def at_once(works: list[Work]) -> Work:
    return lambda: list(POOL.map(lambda work: work(), works))


def ours(codec: Codec, part: Array) -> Work:
    """The codec's kernel, into buffers that are there already, as libggml has them."""
    if isinstance(codec, Affine):
        rows, columns = part.shape
        packed = np.zeros((rows, columns * codec.bits // 8), np.uint8)
        beside = [np.zeros((rows, columns // codec.group), np.float32) for _ in range(1 if codec.form == "symmetric" else 2)]
        kernel = getattr(kernels, f"encode_{codec.form}")
        return lambda: kernel(part, codec.bits, codec.group, codec.scale, packed, *beside)
    size, nbytes = kernels.BLOCKS[codec.name]
    values = part.reshape(-1, size)
    blocks = np.zeros((len(values), nbytes), np.uint8)
    return lambda: getattr(kernels, f"encode_{codec.name}")(values, blocks)


def theirs(name: str, part: Array) -> Work | None:
    made = quantizer if part.dtype == np.float32 else quantizer_of_bf16
    return made(name, part, np.zeros(4 * part.size, np.uint8))


def cases() -> Iterator[Case]:
    values = np.random.default_rng(0).standard_normal(SHAPE, np.float32) * np.float32(0.02)
    for codec, peer in PAIRS:
        label = f"int{codec.bits} {codec.form} {codec.scale}" if isinstance(codec, Affine) else codec.name
        for array in (values, values.astype(ml_dtypes.bfloat16)):
            for parts in ([array], np.split(array, 2)):
                contenders = {"flyweight": at_once([ours(codec, part) for part in parts])}
                peers = [work for part in parts if (work := theirs(peer, part)) is not None]
                if peers:
                    contenders[f"libggml {peer}"] = at_once(peers)
                threads, limit = ("two threads", "read2") if len(parts) == 2 else ("one thread", "read")
                name = f"{array.dtype} → {label}, {threads}"
                yield Case(name, values.nbytes, contenders, limit, target=f"3× libggml {peer}")


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=11)
