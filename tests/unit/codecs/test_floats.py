"""8-bit floats with scales, MXFP4 as two arrays, and signs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.codecs import codec_for, take_rows
from flyweight.codecs.floats import Fp8, Fp8Scalar, Mxfp4Split
from flyweight.codecs.sign import Sign
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec, has_rows, rows_encode_alone
from support.toys import safetensors_bytes


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("format_", "dtype"), [("e4m3", DType.F8_E4M3), ("e5m2", DType.F8_E5M2)])
@pytest.mark.parametrize("divide", [False, True])
def test_every_code_times_its_scale(format_: str, dtype: DType, divide: bool) -> None:
    spec = TensorSpec((2, 256), DType.F32)
    codes = np.tile(np.arange(256, dtype=np.uint8), (2, 1)).view(dtype.numpy)
    scale = np.float32([[0.37], [-3e-7]])
    out = Fp8(format_, divide=divide).decode(spec, {"codes": codes, "scale": scale})
    wide = codes.astype(np.float32)
    expected = wide / scale if divide else wide * scale
    assert np.array_equal(out, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("rows", "columns", "shape"), [(0, 0, (1, 1)), (1, 0, (6, 1)), (1, 4, (6, 3)), (4, 4, (2, 3)), (0, 5, (1, 2))]
)
def test_where_a_scale_applies(rows: int, columns: int, shape: tuple[int, int]) -> None:
    spec = TensorSpec((6, 10), DType.F32)
    codec = Fp8(rows=rows, columns=columns)
    assert codec.layout(spec)["scale"].shape == shape
    codes = np.ones((6, 10), DType.F8_E4M3.numpy)
    scale = np.arange(1, 1 + shape[0] * shape[1], dtype=np.float32).reshape(shape)
    out = codec.decode(spec, {"codes": codes, "scale": scale})
    for i in range(6):
        for j in range(10):
            assert out[i, j] == scale[i // (rows or 6), j // (columns or 10)]


@pytest.mark.parametrize(("format_", "step"), [("e4m3", 2.0**-4), ("e5m2", 2.0**-3)])
@pytest.mark.parametrize("scale", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("divide", [False, True])
def test_the_error_is_half_a_step(format_: str, step: float, scale: str, divide: bool) -> None:
    """A normal code is within 2^-(m + 1) of the value, relatively; a subnormal one within half the least code, which is
    below 2^-17 of the greatest. Narrow scales may clip the greatest by their own rounding, 2^-8 for bf16."""
    values, spec = weights(16, 64), TensorSpec((16, 64), DType.F32)
    codec = Fp8(format_, scale=scale, divide=divide)
    out = codec.decode(spec, codec.encode(spec, values))
    peak = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(out - values) <= step * 1.001 * np.abs(values) + peak * 2.0**-17).all()
    assert np.allclose(np.abs(out).max(axis=1, keepdims=True), peak, rtol=2.0**-7)


def test_tiny_and_huge_rows() -> None:
    spec = TensorSpec((3, 4), DType.F32)
    values = np.float32([[0, 0, 0, 0], [1e-44, 0, -1e-44, 0], [3e38, -3e38, 0, 0]])
    for divide in (False, True):
        out = (codec := Fp8(divide=divide)).decode(spec, codec.encode(spec, values))
        assert np.isfinite(out).all()
        assert np.allclose(out, values, rtol=0.07, atol=1e-36)
    with pytest.raises(UnsupportedError):
        Fp8(scale="f16").encode(spec, values)


def test_mxfp4_split_is_ggml_mxfp4_in_other_places() -> None:
    spec, values = TensorSpec((4, 128), DType.F32), weights(4, 128)
    ours, ggml = Mxfp4Split(), codec_for(CodecSpec("mxfp4"))
    assert np.array_equal(ours.decode(spec, ours.encode(spec, values)), ggml.decode(spec, ggml.encode(spec, values)))
    parts = {"codes": np.uint8([[0x72, *[0] * 15]]), "scale": np.uint8([[128]])}
    row = ours.decode(TensorSpec((1, 32), DType.F32), parts)
    assert row[0, :3].tolist() == [2.0, 12.0, 0.0]  # the low nibble is the even element: 1 · 2, then 6 · 2


def test_the_scale_that_means_nan_is_complained_about() -> None:
    spec = TensorSpec((1, 32), DType.F32)
    for codec, parts in (
        (Mxfp4Split(), {"codes": np.zeros((1, 16), np.uint8), "scale": np.uint8([[255]])}),
        (codec_for(CodecSpec("mxfp4")), {"blocks": np.uint8([[255, *[0] * 16]])}),
    ):
        assert "which means NaN" in str(codec.check_values(spec, parts))


def test_sign_keeps_the_mean_magnitude() -> None:
    spec = TensorSpec((1, 9), DType.F32)
    values = np.float32([[1, -1, 2, -2, 0, -0.0, 3, -3, 6]])
    parts = Sign().encode(spec, values)
    assert parts["signs"].tolist() == [[0b01110101, 1]]
    assert Sign(packing="big").encode(spec, values)["signs"].tolist() == [[0b10101110, 0x80]]
    assert np.array_equal(Sign().decode(spec, parts), np.float32([[2, -2, 2, -2, 2, 2, 2, -2, 2]]))


def test_one_scale_for_a_tensor_and_two_numbers_that_are_kept() -> None:
    spec, values = TensorSpec((2, 3, 40), DType.F32), weights(2, 3, 40)
    codec = Fp8Scalar()
    parts = codec.encode(spec, values)
    peak = np.abs(values).max()
    assert parts["codes"].shape == spec.shape
    assert all(parts[name].shape == () for name in ("scale", "x_scale", "quant_scale"))
    assert parts["scale"] == parts["x_scale"] == peak / np.float32(448)
    assert parts["quant_scale"] == np.float32(1) / parts["scale"]
    out = codec.decode(spec, parts)
    assert np.array_equal(out, parts["codes"].astype(np.float32) * parts["scale"])
    assert (np.abs(out - values) <= 2.0**-4 * 1.001 * np.abs(values) + peak * 2.0**-17).all()
    other = dict(parts) | {"x_scale": np.float32(7).reshape(()), "quant_scale": np.float32(-1).reshape(())}
    assert np.array_equal(codec.decode(spec, other), out)
    assert codec.check_values(spec, other) is None
    assert codec.check_values(spec, dict(parts) | {"x_scale": np.float32(np.nan).reshape(())}) is not None


def test_a_tensor_of_almost_nothing_has_the_scale_one() -> None:
    spec = TensorSpec((1, 4), DType.F32)
    for tiny in (0.0, 1e-45, 1e-40):
        parts = Fp8Scalar().encode(spec, np.full((1, 4), tiny, np.float32))
        assert parts["scale"] == parts["quant_scale"] == 1
        assert not Fp8Scalar().decode(spec, parts).any()
    with pytest.raises(UnsupportedError) as refused:
        Fp8Scalar().encode(TensorSpec((), DType.F32), np.float32(1))
    assert refused.value.code == "E_SPEC"


def test_rows_of_a_tensor_with_one_scale_are_read_alone(tmp_path: Path) -> None:
    """A scalar part belongs to every row: rows are cut, moved and decoded without the others."""
    values = weights(64, 96)
    spec = TensorSpec(values.shape, DType.F32)
    parts = Fp8Scalar().encode(spec, values)
    whole = Fp8Scalar().decode(spec, parts)
    tensor = EncodedTensor(spec, CodecSpec("fp8_scalar"), parts)
    assert has_rows(spec, Fp8Scalar().layout(spec))
    assert not rows_encode_alone(spec, Fp8Scalar().layout(spec))
    some = take_rows(tensor, np.array([5, 3, 60]))
    assert np.array_equal(Fp8Scalar().decode(some.spec, some.parts), whole[[5, 3, 60]])
    (tmp_path / "dense.safetensors").write_bytes(safetensors_bytes({"w": values}))
    flyweight.convert(tmp_path / "dense.safetensors", tmp_path / "fp8.safetensors", quant="fp8_scalar")
    with flyweight.open(tmp_path / "fp8.safetensors") as opened:
        slab = opened.slab("w", 7, 9)
        assert np.array_equal(Fp8Scalar().decode(slab.spec, slab.parts), whole[7:9])
        assert np.array_equal(opened["w"], whole)
