"""`clip`: no group worse off than under `nearest`, importance that counts, groups found one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs.affine import Affine
from flyweight.codecs.raw import Raw
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from support.importance import weighing

clip = QUANTIZERS["clip"]
FORMS = ("scale_bias", "scale_zero", "symmetric")


def losses(codec: Affine, values: np.ndarray, quantizer: str, importance: np.ndarray | None = None) -> np.ndarray:
    """Σ importance · error² of each group, in a row of its own."""
    spec = TensorSpec(values.shape, DType.F32)
    by = importance if quantizer == "clip" else None
    decoded = codec.decode(spec, QUANTIZERS[quantizer](values, codec, spec, weighing(by))).astype(np.float64)
    weights = np.ones(values.shape[1]) if importance is None else np.maximum(importance / importance.max(), 2.0**-20)
    terms = (decoded - values) ** 2 * weights.astype(np.float32)
    return np.add.reduceat(terms, np.arange(0, values.shape[1], codec.group), axis=1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    bits=st.integers(1, 8),
    form=st.sampled_from(FORMS),
    scale=st.sampled_from(["f32", "f16", "bf16"]),
    group=st.sampled_from([7, 32, 64]),
    kind=st.sampled_from(["normal", "laplace", "outlier", "constant", "one sign"]),
    weighed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_group_is_worse_than_nearest(
    bits: int, form: str, scale: str, group: int, kind: str, weighed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.laplace(size=(4, 80)) if kind == "laplace" else rng.standard_normal((4, 80))
    values *= 10.0 ** rng.integers(-3, 3)
    if kind == "outlier":
        values[:, 5] *= 50
    if kind == "constant":
        values[...] = values[0, 0]
    if kind == "one sign":
        values = np.abs(values)
    importance = rng.exponential(size=80) if weighed else None
    codec, values = Affine(bits, group, form, scale), values.astype(np.float32)
    found, nearest = (losses(codec, values, name, importance) for name in ("clip", "nearest"))
    assert (found <= nearest * (1 + 1e-12)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("bits", "gain"), [(2, 0.75), (3, 0.85), (4, 0.95)])
def test_much_less_error_with_few_bits(form: str, bits: int, gain: float) -> None:
    values = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    codec = Affine(bits, 64, form, "f16")
    assert losses(codec, values, "clip").sum() < gain * losses(codec, values, "nearest").sum()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axis", [-1, 0])
def test_importance_lessens_the_error_where_it_is(form: str, axis: int) -> None:
    values = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    importance = np.where(np.arange(64) % 4 == 0, 100.0, 1.0)
    codec, spec = Affine(3, 64, form, axis=axis), TensorSpec((64, 64), DType.F32)
    even, weighed = ((codec.decode(spec, clip(values, codec, spec, weighing(by))) - values) ** 2 for by in (None, importance))
    if axis == 0:
        assert np.allclose(even, weighed, atol=1e-6)  # every group is one column: nothing to weigh
    else:
        assert weighed[:, ::4].sum() < 0.9 * even[:, ::4].sum()


def test_groups_are_found_one_by_one() -> None:
    values = np.random.default_rng(2).standard_normal((64, 5000)).astype(np.float32)  # more than one chunk
    codec = Affine(3, 64, scale="f16")
    whole = clip(values, codec, TensorSpec(values.shape, DType.F32))
    alone = clip(values[60:61], codec, TensorSpec((1, 5000), DType.F32))
    assert all(np.array_equal(alone[name][0], whole[name][60]) for name in whole)


def test_refuses_what_is_not_affine() -> None:
    with pytest.raises(UnsupportedError) as refused:
        clip(np.zeros((1, 32), np.float32), Raw(), TensorSpec((1, 32), DType.F32))
    assert refused.value.code == "E_QUANTIZER"
