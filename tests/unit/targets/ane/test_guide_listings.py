"""The guide's reconstruction rules and worked bytes, beside the codecs that stand for its forms."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs import codec_for
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec

RNG = np.random.default_rng(4)


def spec(*shape: int, dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def test_affine() -> None:
    """w = s · q: on the M1 without a zero point."""
    codes = RNG.integers(-127, 128, (6, 10), np.int8)
    scale = RNG.uniform(0.01, 0.1, (6, 1)).astype(np.float16)
    parts = {"codes": codes.view(np.uint8).reshape(-1), "scale": scale}
    decoded = codec_for(CodecSpec("blockwise", {"data": "i8", "block": "1"})).decode(spec(6, 10), parts)
    assert np.array_equal(decoded, (scale.astype(np.float32) * codes).astype(np.float16).astype(np.float32))


def test_lookup_table() -> None:
    """Indices 1, 0, 0, 1 into a codebook that begins 0, 1 are the bytes 01 10, low nibble first; it takes 32 bytes."""
    table = np.zeros(16, np.uint16)
    table[1] = 0x3C00
    codec = codec_for(CodecSpec("palette", {"bits": 4}))
    parts = {"indices": np.array([0x01, 0x10], np.uint8), "tables": table.view(np.float16).reshape(1, 1, 16, 1)}
    assert table.nbytes == 32
    assert np.array_equal(codec.decode(spec(1, 4), parts), [[1, 0, 0, 1]])


@pytest.mark.parametrize("shape", [(7, 9), (8, 16)])
def test_scatter(shape: tuple[int, int]) -> None:
    """A set bit consumes a value, a clear one is zero; bits are low first over the whole tensor."""
    values = RNG.normal(size=shape).astype(np.float16)
    values[RNG.random(shape) < 0.63] = 0
    codec = codec_for(CodecSpec("sparse", {"form": "stream", "inner": RAW}))
    whole = spec(*shape, dtype=DType.F16)
    fitted = codec.fit(whole, values)
    parts = fitted.encode(whole, values)
    mask, nonzeros = parts["mask"].reshape(-1), parts["inner.data"]
    count = values.size
    assert (mask.nbytes, nonzeros.nbytes) == (-(-count // 8), 2 * int(np.bitwise_count(mask).sum()))
    out, at = [0.0] * count, 0
    for place in range(count):
        if mask[place // 8] >> (place % 8) & 1:
            out[place] = float(nonzeros[at])
            at += 1
    assert np.array_equal(np.reshape(out, shape), values)
    assert np.array_equal(fitted.decode(whole, parts), values)
