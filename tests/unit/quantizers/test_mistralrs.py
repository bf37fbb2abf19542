"""The quantizer of mistral.rs's bytes: files of the tool itself, the rules it follows, and what it refuses."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight.codecs import Codec, codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.f8q8 import F8q8
from flyweight.codecs.floats import Fp8, Fp8Scalar, Mxfp4Split
from flyweight.codecs.hqq import Hqq
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.quantizers import QUANTIZERS
from support import GOLDEN
from support.importance import weighing

mistralrs = QUANTIZERS["mistralrs"]


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def afq(bits: int, scale: str = "f32") -> Affine:
    return Affine(bits, 64, scale=scale, word="u32")


WRITTEN: dict[str, Codec] = {
    **{f"afq{bits}": afq(bits) for bits in (2, 3, 4, 6, 8)},
    **{f"afq4_{scale}": afq(4, scale) for scale in ("bf16", "f16")},
    "fp8": Fp8Scalar(),
    "f8q8": F8q8(),
    "mxfp4": Mxfp4Split(),
    "hqq4": Hqq(4, 64),
    "hqq8": Hqq(8, 64),
    **{name: codec_for(CodecSpec(name)) for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1")},
    "q8k": codec_for(CodecSpec("q8_k")),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_bytes_of_mistral_rs(name: str) -> None:
    """tests/golden/PROVENANCE.md"""
    with np.load(GOLDEN / "mistralrs.npz") as golden:
        model = name.partition("_")[2] if name.startswith("afq") else ""
        weight = golden["weight"]
        if model:
            weight = weight.astype(DType.parse(model).numpy).astype(np.float32)
        parts = mistralrs(weight, WRITTEN[name], f32(*weight.shape))
        assert {key for key in golden if key.startswith(f"{name}.")} == {f"{name}.{part}" for part in parts}
        for part, found in parts.items():
            stored = golden[f"{name}.{part}"]
            assert np.ascontiguousarray(found).tobytes() == stored.tobytes(), part


def test_afq_rounds_halves_away_from_zero_and_its_scales_last() -> None:
    values = np.float32([[0, 15, 0.5, 1.5, 2.5, 14.5, *[0] * 26], [1, 1.0000001, *[1] * 30]])
    codec = Affine(4, 32, scale="bf16")
    parts = mistralrs(values, codec, f32(2, 32))
    codes = codec.grid(f32(2, 32), parts).codes
    assert codes[0, :6].tolist() == [0, 15, 1, 2, 3, 15]
    assert codes[1, 1] == 15  # a range of one unit in the last place
    assert parts["scale"].astype(np.float32)[0, 0] == 1
    assert parts["bias"].tolist() == [[0], [1]]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_group_of_negative_zeros_has_a_negative_zero(dtype: DType) -> None:
    values = np.zeros((3, 64), dtype.numpy)
    values[0], values[1, :32] = -0.0, -0.0
    parts = mistralrs(values, Affine(4, 32), f32(3, 64))
    assert np.signbit(parts["bias"]).tolist() == [[True, True], [True, False], [False, False]]
    assert (parts["scale"] == 1).all()


@pytest.mark.parametrize("peak", [0.0, 1e-3, 0.7, 1.0, 1.5, 300.0, 1e30])
def test_fp8_uses_416_and_never_more_than_416_times(peak: float) -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32) * np.float32(peak)
    parts = mistralrs(values, Fp8Scalar(), f32(2, 32))
    narrow = np.float32(ml_dtypes.bfloat16(peak))
    with np.errstate(divide="ignore"):
        scale = min(ml_dtypes.bfloat16(416 * np.float32(ml_dtypes.bfloat16(np.float32(1) / narrow))), 416)
    assert parts["quant_scale"] == np.float32(scale)
    assert parts["scale"] == parts["x_scale"] == np.float32(1) / np.float32(scale)
    product = (values.astype(ml_dtypes.bfloat16).astype(np.float32) * np.float32(scale)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(parts["codes"].view(np.uint8), product.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_importance_changes_nothing_but_must_be_one() -> None:
    values = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    importance = np.arange(64.0)
    for codec in (afq(4), Hqq(4, 64), F8q8(), codec_for(CodecSpec("q8_0"))):
        plain, weighed = (mistralrs(values, codec, f32(4, 64), weighing(by)) for by in (None, importance))
        assert all(np.array_equal(plain[part], weighed[part]) for part in plain)
        with pytest.raises(UnsupportedError) as refused:
            mistralrs(values, codec, f32(4, 64), weighing(importance[:-1]))
        assert refused.value.code == "E_IMPORTANCE"


@pytest.mark.parametrize(
    "codec",
    [
        *(codec_for(CodecSpec(name)) for name in ("q2_k", "q4_k", "q6_k", "iq4_nl", "mxfp4", "raw")),
        Fp8(), Affine(5, 64), Affine(4, 64, "symmetric"), Affine(4, 64, packing="big"), Affine(4, 64, axis=0),
    ],
    ids=lambda codec: str(codec.spec),
)  # fmt: skip
def test_what_mistral_rs_does_not_write_or_writes_in_its_own_way_is_refused(codec: Codec) -> None:
    with pytest.raises(UnsupportedError) as refused:
        mistralrs(np.zeros((256, 256), np.float32), codec, f32(256, 256))
    assert refused.value.code == "E_QUANTIZER"


@pytest.mark.parametrize(
    ("codec", "value", "code"),
    [
        *((codec, bad, None) for codec in WRITTEN.values() for bad in (np.nan, np.inf, -np.inf)),
        (F8q8(), 137.0, "E_BLOCK_RANGE"),
        (Fp8Scalar(), 3.4e38, "E_RANGE"),
        (afq(4, "f16"), 1e6, "E_RANGE"),
    ],
)
def test_values_that_it_cannot_store_are_refused(codec: Codec, value: float, code: str | None) -> None:
    values = np.zeros((8, 256), np.float32)
    values[1, 7] = value
    with pytest.raises(UnsupportedError) as refused:
        mistralrs(values, codec, f32(8, 256))
    assert code is None or refused.value.code == code
