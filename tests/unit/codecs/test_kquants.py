"""The K types of ggml and iq4_xs as encoders: less error than plain rounding, importance that counts, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs import ggml
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from support.importance import weighing

SEARCHED = {kind.name: kind() for kind in ggml.CODECS if issubclass(kind, ggml.Searched)}
EVERY = pytest.mark.parametrize("name", SEARCHED)
SPEC = TensorSpec((16, 512), DType.F32)


def sample(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(SPEC.shape) * 10.0 ** rng.integers(-3, 2, (16, 1))).astype(np.float32)


def decoded(name: str, values: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    codec = SEARCHED[name]
    return codec.decode(SPEC, codec.encode(SPEC, values, importance))


def square_error(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return ((a.astype(np.float64) - b) ** 2).reshape(-1, 256).sum(axis=1)


# Plain rounding within a block: the extremes of each group on the ends of its grid, scales and minimums rounded to
# (codes, groups, steps of a scale) of the type, scales of scales as f16. In float64, from the formulas of the format.

PLAIN = {
    "q2_k": (3, 16, 15),
    "q4_k": (15, 8, 63),
    "q5_k": (31, 8, 63),
    "q3_k": (3, 16, 31),
    "q6_k": (31, 16, 127),
    "iq4_xs": (127, 8, 31),
    "iq4_nl": (127, 8, 1),
    "q8_k": (127, 1, 1),
}
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])


def plainly_rounded(name: str, values: np.ndarray) -> np.ndarray:
    top, groups, steps = PLAIN[name]
    x = values.reshape(-1, groups, 256 // groups).astype(np.float64)
    if name in ("iq4_nl", "q8_k"):  # one scale: f16, f32
        v = (np.abs(x).max(axis=2) / top).astype(np.float16 if name == "iq4_nl" else np.float32).astype(np.float64)[:, :, None]
        if name == "q8_k":
            return (v * np.rint(x / v)).reshape(values.shape)
        return (v * IQ4[np.abs(x[..., None] - v[..., None] * IQ4).argmin(axis=-1)]).reshape(values.shape)
    if name in ("q3_k", "q6_k", "iq4_xs"):
        scale = np.abs(x).max(axis=2) / top
        d = (scale.max(axis=1, keepdims=True) / steps).astype(np.float16).astype(np.float64)
        v = (d * np.rint(scale / d))[:, :, None]
        if name == "iq4_xs":
            return (v * IQ4[np.abs(x[..., None] - v[..., None] * IQ4).argmin(axis=-1)]).reshape(values.shape)
        return (v * np.clip(np.rint(x / np.where(v == 0, 1, v)), -top - 1, top)).reshape(values.shape)
    low = np.minimum(x.min(axis=2), 0)
    scale = (x.max(axis=2) - low) / top
    d, dmin = ((part.max(axis=1, keepdims=True) / steps).astype(np.float16).astype(np.float64) for part in (scale, -low))
    v, m = (d * np.rint(scale / d))[:, :, None], (dmin * np.rint(-low / dmin))[:, :, None]
    return (v * np.clip(np.rint((x + m) / np.where(v == 0, 1, v)), 0, top) - m).reshape(values.shape)


@EVERY
@pytest.mark.parametrize("seed", range(4))
def test_never_more_error_than_plain_rounding_and_less_on_the_whole(name: str, seed: int) -> None:
    values = sample(seed)
    found, plain = square_error(decoded(name, values), values), square_error(plainly_rounded(name, values), values)
    assert (found <= plain * 1.0001).all()
    assert found.sum() < (0.9999 if name == "q8_k" else 0.95) * plain.sum()  # 127 steps leave little to find


@EVERY
def test_importance_moves_the_error_to_the_columns_that_matter_less(name: str) -> None:
    values, importance = sample(), np.where(np.arange(512) % 4 == 0, 50.0, 1.0)
    even, weighed = (square_error_by_column(decoded(name, values, by), values) for by in (None, importance))
    matters = importance > 1
    assert weighed[matters].sum() < 0.9 * even[matters].sum()
    assert weighed[~matters].sum() > even[~matters].sum()
    assert (weighed * importance).sum() < (even * importance).sum()


def square_error_by_column(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows count alike."""
    return (((a - b) / np.abs(b).max(axis=1, keepdims=True)) ** 2).sum(axis=0, dtype=np.float64)


@EVERY
def test_equal_importance_is_no_importance(name: str) -> None:
    codec, values = SEARCHED[name], sample()
    plain = codec.encode(SPEC, values)["blocks"]
    for importance in (np.full(512, 7.0), np.zeros(512)):
        assert np.array_equal(QUANTIZERS["nearest"](values, codec, SPEC, weighing(importance))["blocks"], plain)


@EVERY
@pytest.mark.parametrize("importance", [np.ones(511), np.ones((1, 512)), np.full(512, np.nan), np.full(512, -1.0)])
def test_importance_that_is_none_is_refused(name: str, importance: np.ndarray) -> None:
    with pytest.raises(UnsupportedError) as refused:
        SEARCHED[name].encode(SPEC, sample(), importance)
    assert refused.value.code == "E_IMPORTANCE"


@EVERY
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 1e30, -1e9])
def test_values_that_do_not_fit_are_refused(name: str, bad: float) -> None:
    values = np.zeros(SPEC.shape)
    values[3, 300] = bad
    if name == "q8_k" and abs(bad) < 2.0**40:  # its scale is f32
        assert decoded(name, values)[3, 300] == pytest.approx(bad, rel=2**-8)
        return
    with pytest.raises(UnsupportedError) as refused:
        SEARCHED[name].encode(SPEC, values)
    assert refused.value.code == "E_BLOCK_RANGE"


@EVERY
@pytest.mark.parametrize("tiny", [0.0, -0.0, 1e-45, 1e-30, 2.0**-41, 2.0**-30])
def test_values_too_small_decode_to_next_to_nothing(name: str, tiny: float) -> None:
    assert np.abs(decoded(name, np.full(SPEC.shape, tiny, np.float32))).max() <= 2.0**-23


@EVERY
@pytest.mark.parametrize("value", [1e-3, 1.0, -1.0, 1e5])
def test_a_constant_comes_back_nearly(name: str, value: float) -> None:
    found = decoded(name, np.full(SPEC.shape, value, np.float32))
    assert np.abs(found - value).max() <= abs(value) * 2.0**-4


@EVERY
def test_each_block_is_encoded_for_itself(name: str) -> None:
    values = sample()
    whole = SEARCHED[name].encode(SPEC, values)["blocks"]
    alone = SEARCHED[name].encode(TensorSpec((1, 256), DType.F32), values[5:6, 256:])["blocks"]
    assert np.array_equal(alone[0], whole[5, whole.shape[1] // 2 :])
