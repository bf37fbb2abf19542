"""Lossless coding of bf16 beside ZipNN, in one process on one thread. MB/s of bf16.

Weights drawn from N(0, 0.02), and real ones: those of `tools/fetch_bench_weights.py` rounded to bf16, or with
WEIGHTS=file.bin the bf16 words of a file, little-endian.
ZipNN (entropy coding of the exponent byte) is compared when it is installed; figures are in docs/formats/lossless.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from flyweight.bench.harness import Case, Work, main
from flyweight.checkpoint import open_checkpoint
from flyweight.codecs.codec import Codec
from flyweight.codecs.lossless import Lossless
from flyweight.codecs.lossless_small import LosslessSmall
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec

try:
    from zipnn import ZipNN
except ImportError:
    ZipNN = None


FETCHED = Path(".models/minilm.safetensors")


def weights() -> Iterator[tuple[str, np.ndarray]]:
    yield "N(0, 0.02)", (np.random.default_rng(0).standard_normal(16 << 20) * 0.02).astype(ml_dtypes.bfloat16)
    if path := os.environ.get("WEIGHTS"):
        yield Path(path).name, np.frombuffer(Path(path).read_bytes()[: 32 << 20], ml_dtypes.bfloat16)
    elif FETCHED.exists():
        with open_checkpoint(FETCHED) as model:
            matrices = [model[name].ravel() for name, entry in model.manifest.entries.items() if len(entry.spec.shape) == 2]
            yield "MiniLM", np.concatenate(matrices)[: 16 << 20].astype(ml_dtypes.bfloat16)
    else:
        print(f"{FETCHED} is not here (tools/fetch_bench_weights.py): measuring without real weights")


def cases() -> Iterator[Case]:
    for name, values in weights():
        yield from coding(name, values, Lossless(), 1000, 3000)
        yield from coding(f"{name}, small", values, LosslessSmall(), 200, 2500)


def coding(name: str, values: np.ndarray, level: Codec, encoded: int, decoded: int) -> Iterator[Case]:
    """The two speeds are targets, in MB/s."""
    spec = TensorSpec(values.shape, DType.BF16)
    codec = level.fit(spec, values)
    parts = codec.encode(spec, values)
    out = np.zeros_like(values)
    if codec.decode(spec, parts, out).tobytes() != values.tobytes():
        sys.exit("the values differ; a speed would mean nothing")
    encoders: dict[str, Work] = {"flyweight": lambda: codec.encode(spec, values)}
    decoders: dict[str, Work] = {"flyweight": lambda: codec.decode(spec, parts, out)}
    notes: dict[str, float | str] = {"size": round(sum(part.nbytes for part in parts.values()) / values.nbytes, 4)}
    if ZipNN is not None:
        theirs = ZipNN(bytearray_dtype="bfloat16", threads=1)
        packed = theirs.compress(bytearray(values.tobytes()))
        encoders["zipnn"] = lambda: theirs.compress(bytearray(values.tobytes()))
        decoders["zipnn"] = lambda: theirs.decompress(packed)
        notes["zipnn size"] = round(len(packed) / values.nbytes, 4)
    yield Case(f"fit {name}", values.nbytes, {"flyweight": lambda: level.fit(spec, values)}, limit="read")
    yield Case(f"encode {name}", values.nbytes, encoders, limit="copy", target=f"{encoded} MB/s, 1× zipnn", notes=notes)
    yield Case(f"decode {name}", values.nbytes, decoders, limit="copy", target=f"{decoded} MB/s, 1× zipnn", notes=notes)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=7)
