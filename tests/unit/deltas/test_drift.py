"""Weight decay on weights that training does not reach is foreseen, whatever else happens to the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas.drift import MAX_CELLS, NO_DRIFT, Drift, find_drift
from flyweight.deltas.kinds.exact_delta import ExactDelta
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.tensor import TensorSpec


def decayed(weights: np.ndarray, steps: int = 500, rate: float = 2e-7) -> np.ndarray:
    """AdamW without a gradient, step by step in f32."""
    found = weights.copy()
    for _ in range(steps):
        found -= np.float32(rate) * found
    return found


@pytest.fixture(scope="module")
def pair() -> tuple[np.ndarray, np.ndarray]:
    """An embedding of which training reached one row in ten."""
    rng = np.random.default_rng(0)
    base = (rng.standard_normal((1000, 384)) * 0.05).astype(np.float32)
    tuned = decayed(base)
    tuned[::10] += (rng.standard_normal((100, 384)) * 1e-3).astype(np.float32)
    return base.reshape(-1), tuned.reshape(-1)


def reader(array: np.ndarray) -> Any:
    return lambda start, stop: array[start:stop]


def stored_nbytes(base: np.ndarray, tuned: np.ndarray) -> int:
    about: dict[str, Any] = {}
    records = ExactDelta.make(reader(base), reader(tuned), TensorSpec(tuned.shape, DType.F32), about)
    parts = {field: np.concatenate([np.zeros(0, kind), *pieces]) for field, kind, pieces in records}
    delta, out = ExactDelta(TensorSpec(tuned.shape, DType.F32), about, parts), np.empty_like(tuned)
    delta.rebuild(0, len(out), base, out)
    assert out.tobytes() == tuned.tobytes()
    return sum(part.nbytes for part in parts.values())


def test_most_weights_end_where_they_are_foreseen(pair: tuple[np.ndarray, np.ndarray]) -> None:
    base, tuned = pair
    moved = find_drift(reader(base), reader(tuned), len(base)).moved(base.view(np.uint32))
    assert (base.view(np.uint32) == tuned.view(np.uint32)).mean() < 0.01
    assert (moved == tuned.view(np.uint32)).mean() > 0.75  # nine in ten are untouched; few lie where a cell has two numbers


def test_what_is_foreseen_takes_little(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """The untouched nine tenths take less than the one that was trained, at 16 bits a weight or so."""
    base, tuned = pair
    trained = stored_nbytes(base[: len(base) // 10], tuned.reshape(1000, -1)[::10].reshape(-1))
    assert stored_nbytes(base, tuned) < 3 * trained


def test_weights_that_move_at_random_have_no_drift(pair: tuple[np.ndarray, np.ndarray]) -> None:
    base, _ = pair
    tuned = base + np.random.default_rng(1).standard_normal(len(base), np.float32) * 1e-3
    assert find_drift(reader(base), reader(tuned), len(base)).cells == 0
    assert find_drift(reader(base), reader(base), len(base)).cells == 0
    assert find_drift(reader(base), reader(base), 0).cells == 0


def test_any_words_move_within_their_range() -> None:
    """The sign is kept, and no magnitude wraps around: NaN payloads and the smallest numbers stay or stay what they are."""
    words = np.random.default_rng(2).integers(0, 1 << 32, CHUNK, np.uint64).astype(np.uint32)
    words[:4] = 0, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFF
    for steps in (-5, 5, 1 << 20, -(1 << 20)):
        drift = Drift(np.stack([np.arange(MAX_CELLS), np.full(MAX_CELLS, steps)], axis=1))
        moved = drift.moved(words)
        assert ((moved ^ words) >> 31 == 0).all()
        apart = (moved & 0x7FFFFFFF).astype(np.int64) - (words & 0x7FFFFFFF)
        assert set(np.unique(apart).tolist()) == {0, steps}
    assert NO_DRIFT.moved(words) is words


@pytest.mark.parametrize(
    "pairs",
    [[(-1, 5)], [(MAX_CELLS, 5)], [(3, 5), (3, 6)], [(4, 5), (3, 5)], [(1, 1 << 21)], [(1, -(1 << 31))]],
)
def test_hostile_tables(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(MalformedError):
        Drift.read(np.array(pairs, "<i4").view(np.uint8).reshape(-1))


@pytest.mark.parametrize("drift", [-1, 38, MAX_CELLS + 1, True, 1.0, "1", None])
def test_hostile_counts(drift: object) -> None:
    parts = {"tables": np.zeros(300, np.uint8), "chunks": np.zeros(0, np.uint8), "ends": np.zeros(1, np.uint64)}
    with pytest.raises(MalformedError):
        ExactDelta(TensorSpec((5,), DType.F32), {"coding": "words", "drift": drift}, parts)


def test_other_types_have_none() -> None:
    parts = {"tables": np.zeros(300, np.uint8), "chunks": np.zeros(0, np.uint8), "ends": np.zeros(1, np.uint64)}
    with pytest.raises(MalformedError):
        ExactDelta(TensorSpec((5,), DType.BF16), {"coding": "words", "drift": 1}, parts)
