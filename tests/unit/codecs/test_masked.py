"""Masked tensors: whoever ignores the mask decodes the same, and a mask that lies is refused. What a mask drops is pruned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.masked import Masked
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec, has_rows
from flyweight.quantizers import QUANTIZERS, prune
from flyweight.runtime.linear import Linear, form_of

VALUES = np.float32([[0, 0, 0, 0, 1, 0, 0, 0, 0, 0], [0, 2, 0, -0.0, 0, 0, 0, 0, 0, 3]])
SPEC = TensorSpec(VALUES.shape, DType.F32)


def tabled(length: int, bits: int = 4) -> CodecSpec:
    return CodecSpec("tabled", {"bits": bits, "length": length})


def test_the_bytes() -> None:
    codec = Masked(block=4)
    parts = codec.encode(SPEC, VALUES)
    assert list(parts) == ["inner.data", "mask"]
    assert parts["mask"].tolist() == [[0b010], [0b101]]  # a zero is a zero whatever its sign
    assert codec.decode(SPEC, parts).tobytes() == VALUES.tobytes()
    assert has_rows(SPEC, codec.layout(SPEC))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I8])
@pytest.mark.parametrize("block", [3, 8, 64])
@pytest.mark.parametrize("shape", [(1,), (0, 5), (5, 0), (3, 5, 7), (2, 129)])
def test_every_value_type_and_shape(dtype: DType, block: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    values = np.where(rng.random(shape) < 0.1, rng.integers(-5, 5, shape), 0).astype(np.int8).astype(dtype.numpy)
    spec, codec = TensorSpec(shape, dtype), Masked(block=block)
    parts = codec.encode(spec, values)
    assert codec.decode(spec, parts).tobytes() == values.tobytes()
    bits = np.unpackbits(parts["mask"], axis=-1, bitorder="little")
    rows = values.reshape(spec.rows, spec.columns).astype(np.float32)
    for row, kept in zip(rows, bits.reshape(spec.rows, bits.shape[-1]), strict=True):
        expected = [row[at : at + block].any() for at in range(0, spec.columns, block)]
        assert kept.tolist() == expected + [0] * (len(kept) - len(expected))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ([[0b000], [0b101]], "block 1 of row 0"),
        ([[0b010], [0b100]], "block 0 of row 1"),
        ([[0b1010], [0b101]], "after the end"),
    ],
)
def test_a_mask_that_lies_is_refused(wrong: list[list[int]], complaint: str) -> None:
    codec, parts = Masked(block=4), {"inner.data": VALUES, "mask": np.uint8(wrong)}
    with pytest.raises(MalformedError, match=complaint) as caught:
        codec.decode(SPEC, parts)
    assert caught.value.code == "E_PART_VALUES"
    assert complaint in str(codec.check_values(SPEC, parts))


def test_a_mask_may_keep_zeros() -> None:
    parts = {"inner.data": VALUES, "mask": np.uint8([[0b111], [0b111]])}
    assert Masked(block=4).check_values(SPEC, parts) is None


@pytest.mark.parametrize("quantizer", ["nearest", "clip", "anchored", "hqq"])
@pytest.mark.parametrize("bits", [4, 2])
def test_dropped_blocks_of_a_tabled_tensor_are_zero(quantizer: str, bits: int) -> None:
    values = prune(np.random.default_rng(1).standard_normal((8, 576)).astype(np.float32), 64, 0.5)
    spec, codec = TensorSpec(values.shape, DType.F32), Masked(tabled(32, bits), 64)
    parts = QUANTIZERS[quantizer](values, codec, spec)
    decoded = codec.decode(spec, parts)
    assert int(np.bitwise_count(parts["mask"]).sum()) == 8 * 5
    assert np.array_equal(decoded[values == 0], values[values == 0])
    assert np.array_equal(codec.inner_codec.decode(spec, codec.inner_parts(parts)), decoded)
    assert codec.quantizer == codec.inner_codec.quantizer


@pytest.mark.parametrize(("length", "block"), [(0, 64), (128, 64), (48, 64)])
def test_blocks_that_cut_runs_are_refused(length: int, block: int) -> None:
    with pytest.raises(UnsupportedError, match="share a scale") as caught:
        Masked(tabled(length), block).layout(TensorSpec((2, 256), DType.F32))
    assert caught.value.code == "E_SPEC"
    assert caught.value.hint


def test_an_inner_codec_that_does_not_keep_zeros_is_refused() -> None:
    values = np.zeros((1, 64), np.float32)
    values[0, 40:] = np.linspace(0.3, 1, 24)
    codec = Masked(Affine(4, 64, "scale_zero", "bf16").spec, 32)
    spec = TensorSpec(values.shape, DType.F32)
    inner = codec.inner_codec.encode(spec, values)
    shifted = {**inner, "zero": np.ones_like(inner["zero"])}
    with pytest.raises(UnsupportedError, match="does not decode zeros"):
        codec.with_mask(spec, values, shifted)


def test_an_inner_codec_is_fitted_through() -> None:
    codec = Masked("lossless", 4)
    assert codec.needs_fit
    assert not Masked("raw").needs_fit
    fitted = codec.fit(SPEC, VALUES)
    assert codec_for(fitted.spec) == fitted
    assert fitted.decode(SPEC, fitted.encode(SPEC, VALUES)).tobytes() == VALUES.tobytes()


@pytest.mark.parametrize("wrong", [{"block": 0}, {"block": 2**31}, {"block": 4.0}, {"inner": 4}, {"inner": "none"}])
def test_parameters_out_of_range_are_malformed(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        codec_for(CodecSpec("masked", wrong))


# Products -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "block", "form", "skips"),
    [
        ("raw", 64, "f32", 64),
        (tabled(32), 64, "tabled4", 64),
        (tabled(128, 2), 1024, "tabled2", 640),
        ("q4_0", 64, "q4_0", 0),
        ("raw", 48, "f32", 0),
    ],
)
def test_a_layer_multiplies_from_what_is_stored(inner: CodecSpec, block: int, form: str, skips: int) -> None:
    values = prune(np.random.default_rng(6).standard_normal((40, 576)).astype(np.float32), min(block, 64), 0.6)
    spec, codec = TensorSpec(values.shape, DType.F32), Masked(inner, block)
    tensor = EncodedTensor(spec, codec.spec, codec.encode(spec, values))
    matrix = form_of(tensor)
    assert matrix is not None
    assert (matrix.form, matrix.block) == (form, skips)
    assert all(np.shares_memory(part, tensor.parts[name]) for part, name in zip(matrix.parts, tensor.parts, strict=False))
    x, out = np.random.default_rng(7).standard_normal((3, 576)).astype(np.float32), np.empty((3, 40), np.float32)
    for rows in (slice(0, 1), slice(0, 3)):
        Linear([tensor], int8=False)(x[rows], out[rows])
        # In any order a sum of n products with a rounding each errs by (n + 8) · 2^-24 of what is added up, the roundings of
        # scale and zero among them; code · scale and zero of a weight are together at most three times the greatest of its row.
        weights = codec.decode(spec, tensor.parts).astype(np.float64)
        added_up = np.abs(x[rows]).sum(axis=1, keepdims=True) * 3 * np.abs(weights).max(axis=1)
        assert (np.abs(out[rows] - x[rows].astype(np.float64) @ weights.T) <= (576 + 8) * 2.0**-24 * added_up).all()


# Pruning --------------------------------------------------------------------------------------


def test_the_blocks_of_least_energy_go() -> None:
    values = np.float32([[3, 0, 1, 1, 2, 2, 1, -1, 9], [1, 1, 1, 1, 1, 1, 1, 1, 1]])
    kept = prune(values, 2, 0.5)  # two of five blocks, of equal ones the first
    assert kept.tolist() == [[3, 0, 0, 0, 2, 2, 0, 0, 9], [0, 0, 1, 1, 1, 1, 1, 1, 0]]
    assert values[0, 2] == 1
    assert np.array_equal(prune(values, 2, 0.19), values)
    assert not prune(values, 2, 1).any()


def test_rows_are_pruned_alone() -> None:
    values = np.random.default_rng(2).standard_normal((3, 4, 100)).astype(np.float16)
    whole = prune(values, 16, 0.3)
    assert whole.dtype == values.dtype
    assert np.array_equal(whole[1], prune(values[1], 16, 0.3))
    assert prune(values[:0], 16, 0.5).shape == (0, 4, 100)
    for wrong in ((0, 0.5), (16, 1.5), (16, -0.1), (16, float("nan"))):
        with pytest.raises(ValueError, match="must be"):
            prune(values, *wrong)
