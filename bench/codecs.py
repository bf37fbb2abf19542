"""Bits, error and speed of codecs on one matrix, by nearest rounding, on one thread. MB/s of f32.

python bench/codecs.py                                 N(0, 0.02)
WEIGHTS=file.bin COLUMNS=5120 python bench/codecs.py   the bf16 words of a file, little-endian, in rows of that length
"""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np

from flyweight import kernels
from flyweight.bench.harness import measure
from flyweight.codecs import codec_for
from flyweight.dtypes import DType
from flyweight.tensor import CodecSpec, TensorSpec

INT3 = '{"name":"affine","params":{"bits":3,"group":128,"scale":"f16"}}'
CODECS = {
    "q8_0": CodecSpec("q8_0"),
    "affine 8 bits, per row": CodecSpec("affine", {"bits": 8, "group": 0, "form": "symmetric"}),
    "fp8 e4m3, per tensor": CodecSpec("fp8", {"rows": 0}),
    "fp8 e4m3, per row": CodecSpec("fp8"),
    "fp8 e4m3, 128 × 128": CodecSpec("fp8", {"rows": 128, "columns": 128}),
    "fp8 e5m2, per row": CodecSpec("fp8", {"format": "e5m2"}),
    "q4_0": CodecSpec("q4_0"),
    "mxfp4_split": CodecSpec("mxfp4_split"),
    "affine 3 bits, groups of 128": CodecSpec("affine", {"bits": 3, "group": 128, "scale": "f16"}),
    "  + rank 16": CodecSpec("corrected", {"inner": INT3, "rank": 16}),
    "  + rank 64": CodecSpec("corrected", {"inner": INT3, "rank": 64}),
    "  + 0.5 % outliers": CodecSpec("corrected", {"inner": INT3, "rank": 0, "outliers": 1}),
    "affine 1 bit, per row": CodecSpec("affine", {"bits": 1, "group": 0}),
    "sign": CodecSpec("sign", {"scale": "f16"}),
    "half zero: sparse mask": CodecSpec("sparse"),
    "half zero: sparse indices": CodecSpec("sparse", {"form": "indices"}),
    "half zero: mask, 8 bits": CodecSpec("sparse", {"inner": '{"name":"affine","params":{"bits":8,"group":0}}'}),
}


def weights() -> np.ndarray:
    columns = int(os.environ.get("COLUMNS", "4096"))
    if path := os.environ.get("WEIGHTS"):
        words = np.frombuffer(Path(path).read_bytes()[: 2 * 1024 * columns], ml_dtypes.bfloat16)
        return words.reshape(-1, columns).astype(np.float32)
    return (np.random.default_rng(0).standard_normal((1024, columns)) * 0.02).astype(np.float32)


def main() -> None:
    dense = weights()
    pruned = np.where(np.abs(dense) < np.median(np.abs(dense)), np.float32(0), dense)
    spec = TensorSpec(dense.shape, DType.F32)
    print(f"{spec}, kernels {kernels.active()}\n{'':32}bits/weight  rel. error     SNR  encode  decode")
    for name, chosen in CODECS.items():
        values = pruned if name.startswith("half") else dense
        if chosen.params.get("outliers"):
            chosen = CodecSpec(chosen.name, {**chosen.params, "outliers": spec.size // 200})
        codec = codec_for(chosen).fit(spec, values)
        parts = codec.encode(spec, values)
        out = np.zeros(spec.shape, np.float32)
        error = float(np.linalg.norm(codec.decode(spec, parts, out) - values) / np.linalg.norm(values))
        bits = 8 * sum(part.nbytes for part in parts.values()) / spec.size
        snr = f"{-20 * np.log10(error):5.1f}" if error else "exact"
        steps = {
            "encode": lambda c=codec, v=values: c.encode(spec, v),
            "decode": lambda c=codec, p=parts, o=out: c.decode(spec, p, o),
        }
        encode, decode = (figures["median"] for figures in measure(steps, values.nbytes, runs=5).values())
        print(f"{name:32}{bits:11.3f}{error:12.5f}  {snr}  {encode:6.0f}  {decode:6.0f}", flush=True)


if __name__ == "__main__":
    main()
