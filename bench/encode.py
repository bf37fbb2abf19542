"""How fast weights are quantised by nearest rounding, beside libggml, on one thread. MB/s of f32 input.

libggml's quantizer takes f32; so do ours here, and again bf16, which is widened on the way (its rate counts the same values as
f32 would be). The affine grids have no counterpart in libggml: they stand beside its block type of as many bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from peers import quantizer

from flyweight.bench.harness import Case, main
from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.base import Codec
from flyweight.dtypes import DType
from flyweight.tensor import CodecSpec, TensorSpec

SHAPE = (512, 4096)  # 8 MB: the pipeline's slab
PAIRS: tuple[tuple[Codec, str], ...] = (
    (codec_for(CodecSpec("q8_0")), "q8_0"),
    (codec_for(CodecSpec("q4_0")), "q4_0"),
    (codec_for(CodecSpec("q4_1")), "q4_1"),
    (Affine(8, 64, "symmetric", "bf16"), "q8_0"),
    (Affine(8, 64, scale="f16"), "q8_0"),
    (Affine(4, 64, "symmetric", "f16"), "q4_0"),
    (Affine(4, 64, scale="f16"), "q4_0"),
)


def cases() -> Iterator[Case]:
    spec = TensorSpec(SHAPE, DType.F32)
    values = np.random.default_rng(0).standard_normal(SHAPE, np.float32) * np.float32(0.02)
    narrow = values.astype(ml_dtypes.bfloat16)
    for codec, peer in PAIRS:
        theirs = np.zeros(values.nbytes, np.uint8)
        label = f"int{codec.bits} {codec.form} {codec.scale}" if isinstance(codec, Affine) else codec.name
        for array in (values, narrow):
            contenders = {"flyweight": lambda c=codec, a=array: c.encode(spec, a)}
            if (work := quantizer(peer, values, theirs)) is not None:
                contenders[f"libggml {peer}"] = work
            yield Case(f"{array.dtype} → {label}", values.nbytes, contenders, limit="read", target="3× libggml")


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=11)
