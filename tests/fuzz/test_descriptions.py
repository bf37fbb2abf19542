"""Files of our own codecs with a wrong description or wrong bytes: refused, or decoded, and never anything else."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.foundation.errors import FlyweightError
from support.toys import safetensors_bytes

VALUES: list[Any] = [
    0, 1, -1, 2**31, 2**40, 2**63, 2**70, True, 1.5, "", "f16", "mask", "indices", "lossless",
    '{"name":"lossless","params":{"base":3,"escapes":4,"stored":2}}',
]  # fmt: skip
SHAPES = [[0], [32, 0], [2**40], [64, 32], [2048], [], [32, 64, 1], [1, 1, 2048]]
DTYPES = ["bf16", "f16", "i8", "f64", "bool", "f4_e2m1", "c64"]


def weights() -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.where(rng.random((32, 64)) < 0.5, 0, rng.standard_normal((32, 64))).astype(np.float32)


def spoil(rng: random.Random, about: dict[str, Any], body: bytearray) -> None:
    """One thing wrong: a parameter, the shape, the element type, or bytes."""
    params = about["codec"]["params"]
    match rng.choice(["param", "param", "shape", "dtype", "bytes", "bytes"]):
        case "param" if params:
            key = rng.choice(list(params))
            near = [params[key] + 1, params[key] - 1] if type(params[key]) is int else []
            params[key] = rng.choice([*VALUES, *near])
        case "shape":
            about["shape"] = rng.choice(SHAPES)
        case "dtype":
            about["dtype"] = rng.choice(DTYPES)
        case _:
            for _ in range(rng.choice([1, 5, 100])):
                body[rng.randrange(len(body))] = rng.randrange(256)


@pytest.mark.parametrize("quant", ["lossless", "sparse", "fp8", "mxfp4_split", "sign", "corrected", "int4"])
def test_a_wrong_description_is_refused_or_harmless(tmp_path: Path, quant: str) -> None:
    plain, coded, spoilt = (tmp_path / f"{name}.safetensors" for name in ("plain", "coded", "spoilt"))
    plain.write_bytes(safetensors_bytes({"w": weights()}))
    flyweight.convert(plain, coded, quant=quant)
    raw = coded.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    rng = random.Random(quant)
    outcomes = set()
    for _ in range(60):
        header, body = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
        described = json.loads(header["__metadata__"]["flyweight.tensors"])
        spoil(rng, described["w"], body)
        header["__metadata__"]["flyweight.tensors"] = json.dumps(described)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        spoilt.write_bytes(struct.pack("<Q", len(text)) + text + body)
        try:
            flyweight.verify(spoilt)
            with flyweight.open(spoilt) as checkpoint:
                checkpoint["w"]
            outcomes.add("decoded")
        except FlyweightError:
            outcomes.add("refused")
    assert "refused" in outcomes
