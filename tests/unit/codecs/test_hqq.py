"""The codec and the quantizer of HQQ: mistral.rs's own bytes, the order of its elements, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.hqq import Hqq
from flyweight.codecs.raw import Raw
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.quantizers import QUANTIZERS
from support import GOLDEN
from support.importance import weighing

hqq = QUANTIZERS["hqq"]
HQQ4 = GOLDEN / "hqq4.npz"


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_bytes_of_mistral_rs() -> None:
    """tests/golden/PROVENANCE.md"""
    with np.load(HQQ4) as golden:
        values = golden["weight"].view(ml_dtypes.bfloat16).astype(np.float32)
        parts = hqq(values, Hqq(bits=4, group=64), f32(*values.shape))
        assert list(parts) == ["codes", "scale", "zero"]
        for name, part in parts.items():
            assert np.array_equal(part, golden[name]), name


def test_a_group_is_a_column_of_the_matrix() -> None:
    spec = f32(8, 32)  # four groups: elements c, c + 4, c + 8 …
    values = np.tile(np.float32([0, 1000, -1, 10]), 64).reshape(8, 32)
    values[0, :4] += np.float32([15, 15, 15, 15])
    codec = Hqq(bits=4, group=64)
    parts = codec.encode(spec, values)
    assert parts["scale"].tolist() == [[1, 1, 1, 1]]
    assert parts["codes"][0].tolist() == [15 << 4] * 4  # the first row lies in the high bits
    assert not parts["codes"][1:].any()
    assert np.array_equal(codec.decode(spec, parts), values)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_every_width_decodes_what_it_stores(bits: int) -> None:
    values = normal(6, 64)
    codec = Hqq(bits, 64)
    for parts in (codec.encode(f32(6, 64), values), hqq(values, codec, f32(6, 64))):
        codes = parts["codes"]
        high_first = [codes >> shift & (1 << bits) - 1 for shift in range(8 - bits, -1, -bits)]
        plain = parts["scale"] * (np.concatenate(high_first).astype(np.float32) - parts["zero"])
        assert np.array_equal(codec.decode(f32(6, 64), parts), plain.reshape(6, 64))


@pytest.mark.parametrize("group", [1, 10, 64, 70])
def test_three_bits_lie_ten_to_a_word(group: int) -> None:
    """Runs of rows from bit 27 down; rows that the group does not have are zero (docs/formats/hqq.md)."""
    spec, codec = f32(6 * group, 2), Hqq(3, group)
    values = normal(6 * group, 2)
    parts = hqq(values, codec, spec)
    words = -(-group // 10)
    assert parts["codes"].dtype == np.int32
    assert parts["codes"].shape == (words, 12)
    runs = [parts["codes"] >> shift & 7 for shift in range(27, -1, -3)]
    codes = np.concatenate(runs)
    assert not codes[group:].any()
    assert not (parts["codes"] >> 30).any()
    plain = parts["scale"] * (codes[:group].astype(np.float32) - parts["zero"])
    assert np.array_equal(codec.decode(spec, parts), plain.reshape(spec.shape))


@pytest.mark.parametrize(("bits", "shift"), [(8, 0), (4, 4), (2, 6), (1, 7), (3, 27)])
@pytest.mark.parametrize("scale", ["f32", "f16", "bf16"])
def test_along_axis_one_a_group_is_neighbours(bits: int, shift: int, scale: str) -> None:
    """Codes are packed along the first axis of the matrix (groups, group), whatever the axis of the groups."""
    spec, codec = f32(6, 64), Hqq(bits, 16, scale, axis=1)
    values = normal(6, 64)
    for parts in (codec.encode(spec, values), hqq(values, codec, spec)):
        assert parts["scale"].shape == parts["zero"].shape == (24, 1)
        assert parts["scale"].dtype == parts["zero"].dtype == DType.parse(scale).numpy
        runs = [parts["codes"] >> at & (1 << bits) - 1 for at in range(shift, -1, -bits)]
        codes = np.concatenate(runs)[:24].astype(np.float32)
        wide = {name: parts[name].astype(np.float32) for name in ("scale", "zero")}
        plain = wide["scale"] * (codes - wide["zero"])
        assert np.array_equal(codec.decode(spec, parts), plain.reshape(6, 64))
        assert np.array_equal(np.concatenate([*codec.decoded_runs(spec, parts)]), plain.reshape(-1))
    near = codec.decode(spec, codec.encode(spec, values)).reshape(24, 16)
    span = np.ptp(values.reshape(24, 16), axis=1, keepdims=True)
    assert (np.abs(near - values.reshape(24, 16)) <= span * (0.51 / (2**bits - 1) + 2.0**-6)).all()


def test_a_spec_of_bits_and_group_alone_is_what_it_always_was() -> None:
    assert codec_for(CodecSpec("hqq", {"bits": 8, "group": 32})) == Hqq(8, 32, "f32", 0)


def test_groups_along_axis_one_fill_bytes() -> None:
    with pytest.raises(UnsupportedError) as refused:
        Hqq(4, 64, axis=1).layout(f32(3, 64))
    assert refused.value.code == "E_GROUP"
    assert Hqq(3, 64, axis=1).layout(f32(3, 64))["codes"].shape == (1, 64)


@pytest.mark.parametrize(
    "params", [{"bits": 5}, {"bits": 9}, {"group": 0}, {"bits": 1, "group": 12}, {"group": True}, {"axis": 2}, {"scale": "f64"}]
)
def test_bad_parameters(params: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Hqq(**params)


def test_a_tensor_of_broken_groups_is_refused() -> None:
    with pytest.raises(UnsupportedError) as refused:
        Hqq().layout(f32(3, 32))
    assert refused.value.code == "E_GROUP"


def mean_error(values: np.ndarray, decoded: np.ndarray) -> float:
    return float(np.abs(decoded - values).mean(dtype=np.float64))


@pytest.mark.parametrize("form", ["scale_bias", "scale_zero"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_mean_error_falls(form: str, bits: int) -> None:
    values, codec = normal(32, 256), Affine(bits, 64, form)
    found, nearest = (codec.decode(f32(32, 256), QUANTIZERS[name](values, codec, f32(32, 256))) for name in ("hqq", "nearest"))
    assert mean_error(values, found) < mean_error(values, nearest)


def test_groups_are_found_one_by_one() -> None:
    """Slabs, threads and neighbours make no difference."""
    values, codec = normal(64, 512) * np.arange(1, 65, dtype=np.float32)[:, None], Affine(3, 48, scale="f16")
    whole = hqq(values, codec, f32(64, 512))
    alone = hqq(values[40:41], codec, f32(1, 512))
    assert all(np.array_equal(alone[name][0], whole[name][40]) for name in whole)


def test_constant_groups_come_back() -> None:
    values = np.repeat(np.float32([[0.0], [-3.25], [1e-6]]), 64, axis=1)
    for form in ("scale_bias", "scale_zero"):
        codec = Affine(4, 32, form)
        assert np.array_equal(codec.decode(f32(3, 64), hqq(values, codec, f32(3, 64))), values)


@pytest.mark.parametrize("codec", [Affine(2, 64), Affine(2, 64, "scale_zero"), Hqq(2, 64)])
def test_importance_lessens_the_error_where_it_is(codec: Affine | Hqq) -> None:
    values, importance = normal(32, 64), np.where(np.arange(64) < 16, 100.0, 1.0)
    spec = f32(32, 64)
    even, weighed = (np.abs(codec.decode(spec, hqq(values, codec, spec, weighing(by))) - values) for by in (None, importance))
    assert weighed[:, :16].mean() < even[:, :16].mean()


def test_refused() -> None:
    for codec in (Raw(), Affine(4, 64, "symmetric")):
        with pytest.raises(UnsupportedError) as refused:
            hqq(normal(2, 64), codec, f32(2, 64))
        assert refused.value.code == "E_QUANTIZER"
    with pytest.raises(UnsupportedError) as refused:
        hqq(np.full((2, 64), np.nan), Hqq(), f32(2, 64))
    assert refused.value.code == "E_NONFINITE"
