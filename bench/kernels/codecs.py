"""Bits, error and speed of codecs and quantizers on one matrix, on one thread. MB/s of the weights that go in or come out.

python -m bench.kernels.codecs                                 N(0, 0.02)
WEIGHTS=file.bin COLUMNS=5120 python -m bench.kernels.codecs   the bf16 words of a file, little-endian, in rows of that length

Weights are f32, for lossless and the quantizers bf16. Beside the encoders stands the shortest way to much the same bytes in
NumPy and ml_dtypes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from flyweight.bench.harness import Case, Work, main
from flyweight.codecs import codec_for
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.quantizers import QUANTIZERS

Array = np.ndarray[Any, Any]

INT3 = CodecSpec("affine", {"bits": 3, "group": 128, "scale": "f16"})
CODECS = {
    "q8_0": CodecSpec("q8_0"),
    "q8_k": CodecSpec("q8_k"),
    "affine 8 bits, per row": CodecSpec("affine", {"bits": 8, "group": 0, "form": "symmetric"}),
    "fp8 e4m3, per tensor": CodecSpec("fp8", {"rows": 0}),
    "fp8 e4m3, per row": CodecSpec("fp8"),
    "fp8 e4m3, 128 × 128": CodecSpec("fp8", {"rows": 128, "columns": 128}),
    "fp8_scalar": CodecSpec("fp8_scalar"),
    "f8q8": CodecSpec("f8q8"),
    "fp8 e5m2, per row": CodecSpec("fp8", {"format": "e5m2"}),
    "q4_0": CodecSpec("q4_0"),
    "mxfp4_split": CodecSpec("mxfp4_split"),
    "nf4, by 32": CodecSpec("nf4"),
    "excess 7, 4 bits by 32": CodecSpec("excess"),
    "excess 3, 3 bits by 64": CodecSpec("excess", {"bits": 3, "excess": 3, "top": 7, "group": 64, "flat": True, "zeros": True}),
    "blockwise i8, per row": CodecSpec("blockwise"),
    "blockwise i4, by 32": CodecSpec("blockwise", {"data": "i4", "block": "1x32"}),
    "blockwise u4 with offset, by 32": CodecSpec("blockwise", {"data": "u4", "block": "1x32", "offset": "data"}),
    "blockwise i8, 8 × 16": CodecSpec("blockwise", {"block": "8x16"}),
    "scaled palette 4 bits, per row": CodecSpec("scaled", {"inner": CodecSpec("palette")}),
    "affine 3 bits, by 128": CodecSpec("affine", {"bits": 3, "group": 128, "scale": "f16"}),
    "  + rank 16": CodecSpec("corrected", {"inner": INT3, "rank": 16}),
    "  + rank 64": CodecSpec("corrected", {"inner": INT3, "rank": 64}),
    "  + 0.5 % outliers": CodecSpec("corrected", {"inner": INT3, "rank": 0, "outliers": 1}),
    "affine 1 bit, per row": CodecSpec("affine", {"bits": 1, "group": 0}),
    "sign": CodecSpec("sign", {"scale": "f16"}),
    "half zero: mask": CodecSpec("sparse"),
    "half zero: indices": CodecSpec("sparse", {"form": "indices"}),
    "half zero: stream": CodecSpec("sparse", {"form": "stream"}),
    "half zero: codes, i8 per row": CodecSpec("sparse_codes", {"inner": CodecSpec("blockwise")}),
    "half zero: codes, palette 4 bits": CodecSpec("sparse_codes", {"inner": CodecSpec("palette")}),
    "half zero: mask, 8 bits": CodecSpec("sparse", {"inner": CodecSpec("affine", {"bits": 8, "group": 0})}),
    "lossless bf16": CodecSpec("lossless"),
    "half zero: lossless bf16": CodecSpec("lossless"),
}
QUANTIZED = {
    "clip, 4 bits by 64": ("clip", CodecSpec("affine", {"bits": 4, "group": 64, "scale": "f16"})),
    "hqq, 4 bits by 64": ("hqq", CodecSpec("affine", {"bits": 4, "group": 64, "scale": "f16"})),
    "hqq, codec hqq": ("hqq", CodecSpec("hqq")),
    "clip, blockwise i4 by 32": ("clip", CodecSpec("blockwise", {"data": "i4", "block": "1x32"})),
    "anchored, blockwise i4 by 32": ("anchored", CodecSpec("blockwise", {"data": "i4", "block": "1x32"})),
    "coremltools, blockwise i8 per row": ("coremltools", CodecSpec("blockwise")),
    "coremltools, blockwise i4 by 32": ("coremltools", CodecSpec("blockwise", {"data": "i4", "block": "1x32"})),
    "mistralrs, AFQ 4 bits by 64": ("mistralrs", CodecSpec("affine", {"bits": 4, "group": 64, "scale": "bf16", "word": "u32"})),
    "mistralrs, fp8_scalar": ("mistralrs", CodecSpec("fp8_scalar")),
    "mistralrs, f8q8": ("mistralrs", CodecSpec("f8q8")),
    "mistralrs, mxfp4_split": ("mistralrs", CodecSpec("mxfp4_split")),
}
ENCODERS = {"fp8": "1000 MB/s", "sign": "1000 MB/s", "sparse": "1000 MB/s", "lossless": "1000 MB/s"}


def by_numpy(codec: str, kind_name: str, values: Array) -> Work | None:
    """What a reader of the codec's documentation would write."""
    kind, top = (ml_dtypes.float8_e5m2, 57344) if kind_name == "e5m2" else (ml_dtypes.float8_e4m3fn, 448)
    ways: dict[str, Work] = {
        "fp8": lambda: (values / (np.abs(values).max(axis=1, keepdims=True) / np.float32(top))).astype(kind),
        "sparse": lambda: (np.packbits(values != 0, axis=1, bitorder="little"), values[values != 0]),
        "sign": lambda: (np.packbits(values >= 0, axis=1, bitorder="little"), np.abs(values).mean(axis=1)),
    }
    return ways.get(codec)


def weights() -> Array:
    columns = int(os.environ.get("COLUMNS", "4096"))
    if path := os.environ.get("WEIGHTS"):
        words = np.frombuffer(Path(path).read_bytes()[: 2 * 1024 * columns], ml_dtypes.bfloat16)
        return words.reshape(-1, columns).astype(np.float32)
    return (np.random.default_rng(0).standard_normal((1024, columns)) * 0.02).astype(np.float32)


def loss(decoded: Array, values: Array) -> float:
    wide = values.astype(np.float32)
    return float(np.linalg.norm(decoded.astype(np.float32) - wide) / np.linalg.norm(wide))


def cases() -> Iterator[Case]:
    dense = weights()
    pruned = np.where(np.abs(dense) < np.median(np.abs(dense)), np.float32(0), dense)
    for name, chosen in CODECS.items():
        values = pruned if name.startswith("half") else dense
        values = values.astype(ml_dtypes.bfloat16) if chosen.name == "lossless" else values
        spec = TensorSpec(values.shape, DType.BF16 if chosen.name == "lossless" else DType.F32)
        if chosen.params.get("outliers"):
            chosen = CodecSpec(chosen.name, {**chosen.params, "outliers": spec.size // 200})
        codec = codec_for(chosen).fit(spec, values)
        parts, out = codec.encode(spec, values), np.zeros(spec.shape, values.dtype)
        notes: dict[str, float | str] = {
            "bits": 8 * sum(part.nbytes for part in parts.values()) / spec.size,
            "error": loss(codec.decode(spec, parts, out), values),
        }
        encoders: dict[str, Work] = {"flyweight": lambda c=codec, s=spec, v=values: c.encode(s, v)}
        if peer := by_numpy(chosen.name, str(chosen.params.get("format", "")), values):
            encoders["NumPy"] = peer
        target = ENCODERS.get(chosen.name, "")
        yield Case(f"{name}, encode", values.nbytes, encoders, limit="read", target=target, notes=notes)
        yield Case(f"{name}, decode", out.nbytes, {"flyweight": lambda c=codec, s=spec, p=parts, o=out: c.decode(s, p, o)})
    narrow, spec = dense.astype(ml_dtypes.bfloat16), TensorSpec(dense.shape, DType.F32)
    for name, (quantizer, chosen) in QUANTIZED.items():
        codec, fill = codec_for(chosen), QUANTIZERS[quantizer]
        error = loss(codec.decode(spec, fill(narrow, codec, spec)), narrow)
        work: dict[str, Work] = {"flyweight": lambda c=codec, f=fill: f(narrow, c, spec)}
        yield Case(f"{name}, encode", narrow.nbytes, work, limit="read", target="100 MB/s", notes={"error": error})


if __name__ == "__main__":
    main(__doc__.splitlines()[0], cases, runs=5)
