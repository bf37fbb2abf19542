"""What f16 holds of decoded blocks: no more is lost than 2^-11 of a value, and the bound is never below one."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs import codec_for
from flyweight.foundation.dtypes import DType
from flyweight.foundation.ggml_types import ggml_types_with
from flyweight.foundation.tensor import CodecSpec, TensorSpec

SPEC = TensorSpec((8, 256), DType.F32)
BOUNDED = [name for name in ggml_types_with("decode") if name not in ("q8_k", "mxfp4")]


def random_blocks(name: str, seed: int, exponents: tuple[int, int]) -> dict[str, np.ndarray]:
    """Any codes, and scales of any f16 between these powers of two, subnormal ones too."""
    codec = codec_for(CodecSpec(name))
    random = np.random.default_rng(seed)
    part = codec.layout(SPEC)["blocks"]
    blocks = random.integers(0, 256, part.shape, np.uint8).reshape(-1, codec.block_bytes)  # type: ignore[attr-defined]
    for at, _ in codec.scales:  # type: ignore[attr-defined]
        scale = np.ldexp(random.uniform(-1, 1, len(blocks)), random.integers(*exponents, len(blocks)))
        blocks[:, at : at + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    return {"blocks": blocks.reshape(part.shape)}


@pytest.mark.parametrize("exponents", [(-26, -20), (-14, -4), (-2, 3)])
@pytest.mark.parametrize("name", BOUNDED)
def test_f16_holds_what_the_bound_allows(name: str, exponents: tuple[int, int]) -> None:
    codec, parts = codec_for(CodecSpec(name)), random_blocks(name, 5, exponents)
    values = codec.decode(SPEC, parts)
    bound = codec.f16_bound(SPEC, parts)
    assert bound is not None
    assert np.abs(values).max() <= bound * (1 + 2.0**-22)
    if bound <= 65504:
        # Values are multiples of 2^-24, but for a rounding to f32, of 2^-24 of the larger term, where two terms are subtracted.
        error = np.abs(values.astype(np.float16).astype(np.float64) - values)
        assert (error <= np.abs(values) * 2.0**-11 + bound * 2.0**-24).all()


def test_what_is_not_known_to_fit() -> None:
    for name in ("q8_k", "mxfp4"):
        assert codec_for(CodecSpec(name)).f16_bound(SPEC, random_blocks("q8_0", 1, (-4, 0))) is None
    wide = random_blocks("q8_0", 2, (12, 15))
    bound = codec_for(CodecSpec("q8_0")).f16_bound(SPEC, wide)
    assert bound is not None
    assert bound > 65504
    assert codec_for(CodecSpec("mxfp4")).value_dtype is DType.BF16


@pytest.mark.parametrize(
    ("params", "known"),
    [
        ({"scale": "f16"}, True),
        ({"scale": "bf16"}, True),
        ({"scale": "f32"}, False),
        ({"scale": "f16", "form": "scale_zero"}, False),
    ],
)
def test_affine_scales(params: dict[str, str], known: bool) -> None:
    codec = codec_for(CodecSpec("affine", {"bits": 4, "group": 32, **params}))
    values = np.random.default_rng(3).standard_normal(SPEC.shape).astype(np.float32)
    parts = codec.encode(SPEC, values)
    bound = codec.f16_bound(SPEC, parts)
    assert (bound is not None) == known
    assert bound is None or np.abs(codec.decode(SPEC, parts)).max() <= bound * (1 + 2.0**-22)
    tiny = codec.encode(SPEC, values * np.float32(2.0**-20))
    assert params != {"scale": "bf16"} or codec.f16_bound(SPEC, tiny) is None
