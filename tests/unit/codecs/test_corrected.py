"""Corrections: the formula, what the low rank and the outliers gain, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs.corrected import Corrected, _low_rank
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.tensor import CodecSpec, TensorSpec

SPEC = TensorSpec((48, 128), DType.F32)
INT3 = CodecSpec("affine", {"bits": 3, "group": 64})


def weights() -> np.ndarray:
    values = np.random.default_rng(1).standard_normal(SPEC.shape).astype(np.float32)
    values[7, 11], values[40, 100] = 30, -40
    return values


def error(codec: Corrected) -> float:
    return float(np.linalg.norm(codec.decode(SPEC, codec.encode(SPEC, weights())) - weights()))


def test_the_value_is_the_inner_one_plus_the_product_with_outliers_replaced() -> None:
    codec = Corrected(INT3, rank=3, outliers=2)
    parts = codec.encode(SPEC, weights())
    assert parts["places"].tolist() == [7 * 128 + 11, 40 * 128 + 100]
    expected = codec.inner_codec.decode(SPEC, codec.inner_parts(parts))
    for k in range(3):
        expected = expected + parts["left"][:, k : k + 1].astype(np.float32) * parts["right"][k].astype(np.float32)
    expected[7, 11], expected[40, 100] = 30, -40
    assert codec.decode(SPEC, parts).tobytes() == expected.tobytes()


def test_every_correction_helps() -> None:
    plain, ranked, marked = (error(Corrected(INT3, rank=r, outliers=k)) for r, k in ((0, 0), (8, 0), (0, 2)))
    assert ranked < plain
    assert marked < plain * 0.7
    assert error(Corrected(INT3, rank=8, outliers=2)) < marked


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (1, 9), (9, 1), (0, 4), (4, 0)])
@pytest.mark.parametrize("rank", [1, 4, 40])
def test_the_low_rank_is_near_the_best_there_is(shape: tuple[int, int], rank: int) -> None:
    """Eckart and Young: no product of that rank is nearer than the singular values it leaves out."""
    matrix = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    left, right = _low_rank(matrix, rank)
    singular = np.linalg.svd(matrix, compute_uv=False) if matrix.size else np.zeros(0)
    best = float(np.sqrt(np.sum(singular[rank:] ** 2)))
    assert np.linalg.norm(matrix - left @ right) <= 1.02 * best + 1e-4


@pytest.mark.parametrize("places", [[5, 5], [6, 2], [0, 48 * 128]])
def test_outliers_out_of_order_or_range_are_refused(places: list[int]) -> None:
    codec = Corrected(INT3, rank=0, outliers=2)
    parts = {**codec.encode(SPEC, weights()), "places": np.array(places, np.uint32)}
    with pytest.raises(MalformedError) as caught:
        codec.decode(SPEC, parts)
    assert caught.value.code == "E_PART_VALUES"


@pytest.mark.parametrize("params", [{"rank": -1}, {"outliers": 2**31}, {"factor": "f64"}, {"inner": "lossless"}])
def test_bad_parameters(params: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Corrected(**params)  # type: ignore[arg-type]
