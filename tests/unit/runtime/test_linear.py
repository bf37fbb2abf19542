"""Linear layers over codecs that have forms of their own: multiplied as stored, and equal to their decoded values."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs import codec_for
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec
from flyweight.kernels.products.activations import ACTIVATIONS
from flyweight.runtime.linear import DecodedRows, Gated, Linear, form_of

CODECS = [
    CodecSpec("fp8_scalar"),
    CodecSpec("f8q8"),
    CodecSpec("mxfp4_split"),
    *(CodecSpec("hqq", {"bits": bits, "scale": scale}) for bits in (4, 8) for scale in ("f32", "bf16")),
    *(CodecSpec("affine", {"bits": bits, "group": 32, "word": word}) for bits in range(2, 9) for word in ("u8", "u32")),
    *(CodecSpec("stepped", {"bits": bits, "group": group}) for bits in range(2, 9) for group in (32, 64, 128)),
    CodecSpec("iq4_nl"),
    CodecSpec("mxfp4"),
]
# Sums of 96 terms that are 1 or so and 30 at most (HQQ's scale · code and scale · zero are up to 7, an activation up to 4):
# a few roundings of 2^-24 of some hundred. A row or scale in the wrong place errs by 0.1 and more; tests/native has the bound.
NEAR = 2e-4


def stored(codec: CodecSpec, rows: int, columns: int, seed: int = 0) -> tuple[EncodedTensor, np.ndarray]:
    own, spec = codec_for(codec), TensorSpec((rows, columns), DType.F32)
    values = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    tensor = EncodedTensor(spec, own.spec, own.encode(spec, values))
    return tensor, own.decode(spec, tensor.parts).astype(np.float64)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("count", [1, 3, 20])
def test_products_and_gates(codec: CodecSpec, count: int) -> None:
    gate, up = stored(codec, 128, 96), stored(codec, 128, 96, 1)
    x = np.random.default_rng(2).standard_normal((count, 96), np.float32)
    both = Linear([gate[0], up[0]], int8=False, threads=2)
    assert [form.form for form in both.matrices] == [form_of(gate[0]).form] * 2
    product, gated = np.empty((count, 256), np.float32), np.empty((count, 128), np.float32)
    both(x, product)
    Gated(both, "silu")(x, gated, gain=None, eps=0.0)
    expected = x @ np.concatenate([gate[1], up[1]]).T
    assert np.abs(product - expected).max() <= NEAR
    assert np.abs(gated - ACTIVATIONS["silu"](expected[:, :128]) * expected[:, 128:]).max() <= NEAR * np.abs(expected).max()


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("count", [1, 20])
def test_gate_and_up_in_one_tensor(codec: CodecSpec, count: int) -> None:
    """As Phi-3 has them. The two halves of HQQ's rows share bytes and cannot be cut apart."""
    tensor, values = stored(codec, 256, 96)
    x = np.random.default_rng(3).standard_normal((count, 96), np.float32)
    out = np.empty((count, 128), np.float32)
    Gated(Linear([tensor], int8=False), "gelu_tanh")(x, out, gain=None, eps=0.0)
    expected = x @ values.T
    assert np.abs(out - ACTIVATIONS["gelu_tanh"](expected[:, :128]) * expected[:, 128:]).max() <= NEAR * np.abs(expected).max()


@pytest.mark.parametrize("rows", [64, 100, 192])
def test_rows_of_hqq(rows: int) -> None:
    """Of whole groups of rows each is found where it lies; of others the tensor is decoded, and the values are the same."""
    tensor, values = stored(CodecSpec("hqq"), rows, 64)
    found = DecodedRows(tensor)
    assert found.one_by_one == (rows % 64 == 0) == (form_of(tensor) is not None)
    for chosen in (np.array([rows - 1, 0, rows // 2, 0]), slice(rows // 3, rows)):
        assert np.array_equal(found[chosen], values[chosen])
    out = np.empty((1, rows), np.float32)
    Linear([tensor], int8=False)(np.ones((1, 64), np.float32), out)
    assert np.abs(out - values.sum(axis=1)).max() <= NEAR


def test_a_product_where_only_some_tensors_have_one() -> None:
    """All are decoded then, those with a form some rows at a time."""
    whole, odd = stored(CodecSpec("hqq"), 64, 64), stored(CodecSpec("hqq"), 32, 64, 1)
    layer = Linear([whole[0], odd[0]], int8=False)
    assert layer.matrices == []
    out = np.empty((2, 96), np.float32)
    x = np.random.default_rng(4).standard_normal((2, 64), np.float32)
    layer(x, out)
    assert np.abs(out - x @ np.concatenate([whole[1], odd[1]]).T).max() <= NEAR


def test_a_matrix_of_hqq_is_not_cut() -> None:
    form = form_of(stored(CodecSpec("hqq"), 64, 64)[0])
    assert form is not None
    with pytest.raises(TypeError, match="cannot be cut into rows"):
        form[:32]
