"""Low-rank deltas: the same bits for every range, factors within their budget, refusals of what no writer stores."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas.kind import ranges
from flyweight.deltas.kinds.low_rank_delta import MAX_DELTA_RANK, LowRankDelta
from flyweight.deltas.low_rank_fit import Fit, fit, highest_rank
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import ArgumentError, MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec

Array = np.ndarray
BF16 = DType.BF16.numpy


def spec_of(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def elements(array: Array) -> Any:
    """Like a reader of a file: it hands out copies, of ranges that begin at a chunk."""

    def read(start: int, stop: int) -> Array:
        assert start % CHUNK == 0
        assert stop % CHUNK == 0 or stop == array.size
        return array.reshape(-1)[start:stop].copy()

    return read


def factors(shape: tuple[int, ...], rank: int, kind: str, seed: int = 0) -> tuple[Array, Array]:
    rng, spec = np.random.default_rng(seed), spec_of(*shape)
    wide = [rng.standard_normal(size).astype(np.float32) for size in (spec.rows * rank, rank * spec.columns)]
    up, down = (array.astype(BF16).view(np.uint16) if kind == "uint16" else array.astype(kind) for array in wide)
    return up, down


def delta_of(shape: tuple[int, ...], rank: int, scale: float, up: Array, down: Array) -> LowRankDelta:
    made = LowRankDelta(spec_of(*shape), {"rank": rank, "scale": scale}, {"up": up, "down": down})
    made.check()
    return made


def added(delta: LowRankDelta, chunks: int = 1) -> Array:
    values = np.zeros(delta.spec.size, np.float32)
    for start, stop in ranges(values.size, chunks):
        delta.add(start, stop, values[start:stop])
    return values


def by_definition(delta: LowRankDelta) -> Array:
    """The formula of the format, in NumPy: from zero, one rank after the other, then the scale."""
    up, down = (
        (array.view(BF16) if array.dtype == np.uint16 else array).astype(np.float32)  # type: ignore[attr-defined]
        for array in (delta.arrays["up"], delta.arrays["down"])
    )
    up, down = up.reshape(-1, delta.rank), down.reshape(delta.rank, -1)
    total = np.zeros((delta.spec.rows, delta.spec.columns), np.float32)
    for k in range(delta.rank):
        total += up[:, k : k + 1] * down[k]
    return (total * np.float32(delta.scale)).reshape(-1)


@pytest.mark.parametrize("kind", LowRankDelta.fields["up"])
@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (300, 1000), (2, CHUNK + 17), (5 * CHUNK // 2, 3), (2, 0)]
)
def test_every_range_has_the_bits_of_the_definition(kind: str, shape: tuple[int, ...]) -> None:
    delta = delta_of(shape, 5, 0.375, *factors(shape, 5, kind))
    np.testing.assert_array_equal(added(delta), by_definition(delta))
    np.testing.assert_array_equal(added(delta, 3), by_definition(delta))


def test_a_range_may_begin_and_end_anywhere() -> None:
    delta = delta_of((11, 13), 3, 1.0, *factors((11, 13), 3, "float16"))
    whole = by_definition(delta)
    for start in range(0, 143, 5):
        for stop in range(start, 143, 7):
            values = np.full(stop - start, 2.0, np.float32)
            delta.add(start, stop, values)
            np.testing.assert_array_equal(values, 2 + whole[start:stop])


def test_ranks_and_rows_beyond_what_is_held_at_once() -> None:
    delta = delta_of((40, 2100), 600, 1.0, *factors((40, 2100), 600, "float16"))
    np.testing.assert_array_equal(added(delta), by_definition(delta))


def test_rank_zero_adds_nothing() -> None:
    delta = delta_of((4, 6), 0, 1.0, np.zeros(0, np.float16), np.zeros(0, np.float16))
    assert not added(delta).any()


def test_the_sum_is_rounded_once_to_the_type_of_the_base() -> None:
    delta = delta_of((64, 64), 4, 0.01, *factors((64, 64), 4, "float32"))
    base = np.random.default_rng(1).standard_normal(64 * 64).astype(BF16)
    out = np.empty_like(base)
    delta.rebuild(0, base.size, base, out)
    np.testing.assert_array_equal(out, (base.astype(np.float32) + by_definition(delta)).astype(BF16))


# --- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"rank": 2},
        {"rank": 2.0, "scale": 1.0},
        {"rank": True, "scale": 1.0},
        {"rank": -1, "scale": 1.0},
        {"rank": MAX_DELTA_RANK + 1, "scale": 1.0},
        {"rank": 10**400, "scale": 1.0},
        {"rank": 3, "scale": 1.0},
        {"rank": 2, "scale": None},
        {"rank": 2, "scale": "1"},
        {"rank": 2, "scale": True},
        {"rank": 2, "scale": 2.0**127},
        {"rank": 2, "scale": -(10**400)},
        {"rank": 2, "scale": float("nan")},
        {"rank": [2], "scale": 1.0},
    ],
)
def test_a_header_that_does_not_agree_is_refused(about: dict[str, Any]) -> None:
    up, down = factors((3, 5), 2, "float16")
    with pytest.raises(MalformedError, match="E_DELTA"):
        LowRankDelta(spec_of(3, 5), about, {"up": up, "down": down})


@pytest.mark.parametrize(("missing", "field"), [((1, 0), "up"), ((0, 1), "down")])
def test_factors_of_another_length_are_refused(missing: tuple[int, int], field: str) -> None:
    up, down = factors((3, 5), 2, "float16")
    arrays = {"up": up[missing[0] :], "down": down[missing[1] :]}
    with pytest.raises(MalformedError, match=f"'{field}' has"):
        LowRankDelta(spec_of(3, 5), {"rank": 2, "scale": 1}, arrays)


@pytest.mark.parametrize("field", ["up", "down"])
@pytest.mark.parametrize("kind", LowRankDelta.fields["up"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_factors_that_are_not_finite_are_refused(field: str, kind: str, value: float) -> None:
    arrays = dict(zip(("up", "down"), factors((3, 5), 2, kind), strict=True))
    arrays[field][-1] = np.array(value, BF16).view(np.uint16) if kind == "uint16" else value
    with pytest.raises(MalformedError, match=f"'{field}' has a number that is not finite"):
        LowRankDelta(spec_of(3, 5), {"rank": 2, "scale": 1.0}, arrays).check()


@pytest.mark.parametrize("kind", LowRankDelta.fields["up"])
def test_stored_factors_can_be_stored_again_bit_for_bit(kind: str) -> None:
    delta = delta_of((30, 50), 2, 0.3, *factors((30, 50), 2, kind))
    about: dict[str, Any] = {}
    arrays = {field: (dtype, np.concatenate([*pieces])) for field, dtype, pieces in delta.records(about)}
    assert about == {"rank": 2, "scale": 0.3}
    assert list(arrays) == ["up", "down"]
    again = LowRankDelta.make(elements(np.zeros(0)), elements(np.zeros(0)), delta.spec, {}, stored=delta)
    assert [record.dtype for record in again] == [kind, kind]
    for field, (dtype, array) in arrays.items():
        assert dtype == kind
        assert array.tobytes() == delta.arrays[field].tobytes()  # type: ignore[attr-defined]


# --- what is made --------------------------------------------------------------------------------


def pair(spec: TensorSpec, spectrum: Array, seed: int = 0, size: float = 1e-3) -> tuple[Array, Array]:
    """A base, and one whose difference has these singular values (times `size`)."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((spec.rows, len(spectrum))))[0]
    right = np.linalg.qr(rng.standard_normal((spec.columns, len(spectrum))))[0]
    base = (rng.standard_normal((spec.rows, spec.columns)) * 0.02).astype(np.float32)
    return base, (base + (left * (spectrum * size)) @ right.T).astype(np.float32)


def made(base: Array, tuned: Array, spec: TensorSpec, **options: Any) -> tuple[dict[str, Any], LowRankDelta]:
    about: dict[str, Any] = {}
    records = LowRankDelta.make(elements(base), elements(tuned), spec, about, **options)
    arrays = {field: np.concatenate([np.zeros(0, dtype), *pieces]) for field, dtype, pieces in records}
    delta = LowRankDelta(spec, about, arrays)
    delta.check()
    return about, delta


def error_of(delta: LowRankDelta, base: Array, tuned: Array) -> float:
    wanted = tuned.astype(np.float64) - base
    return float(np.linalg.norm(wanted.reshape(-1) - added(delta)) / np.linalg.norm(wanted))


@pytest.mark.parametrize("shape", [(600, 400), (400, 600), (1000, 400), (3, 200, 400)])
@pytest.mark.parametrize("budget", [0.5, 0.1, 0.02, 1e-3, 1e-5])
def test_the_error_is_within_the_budget_and_the_rank_near_the_least(shape: tuple[int, ...], budget: float) -> None:
    """The differences are f32 of weights of 0.02, so they are rounded by 2⁻²⁴ · 0.02 · 2 each at most, and the spectrum ends
    far above. A rank of less than the best cannot be within the budget; iteration and rounding cost a few."""
    spec = spec_of(*shape)
    spectrum = 2.0 ** -np.arange(24)
    base, tuned = pair(spec, spectrum, size=1.0)
    about, delta = made(base, tuned, spec, budget=budget)
    tail = np.sqrt(np.cumsum(np.square(spectrum[::-1]))[::-1] / np.square(spectrum).sum())
    least = int((tail > budget).sum())
    assert least <= delta.rank <= least + 2
    assert error_of(delta, base, tuned) <= budget
    assert about["error"] == pytest.approx(error_of(delta, base, tuned), rel=1e-3, abs=1e-7)
    assert delta.arrays["up"].dtype == (np.float16 if budget > 2**-8 else np.float32)


def test_slowly_falling_spectra_take_more_than_the_first_width() -> None:
    spec = spec_of(700, 600)
    base, tuned = pair(spec, 1 / np.arange(1, 301.0))
    _, delta = made(base, tuned, spec, budget=0.12)
    assert delta.rank > 24
    assert error_of(delta, base, tuned) <= 0.12


def test_an_explicit_rank_is_nearly_the_best_of_that_rank() -> None:
    spec = spec_of(400, 300)
    spectrum = 1 / np.arange(1, 101.0)
    base, tuned = pair(spec, spectrum)
    about, delta = made(base, tuned, spec, rank=16)
    best = np.sqrt(np.square(spectrum[16:]).sum() / np.square(spectrum).sum())
    assert delta.rank == 16
    assert best <= error_of(delta, base, tuned) <= 1.01 * best
    assert about["error"] == pytest.approx(error_of(delta, base, tuned), rel=1e-3)


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_differences_of_any_size(size: float) -> None:
    spec = spec_of(100, 90)
    _, tuned = pair(spec, np.array([1.0, 0.5]), size=1.0)
    base, tuned = np.zeros((100, 90), np.float32), ((tuned - _) * np.float32(size)).astype(np.float32)
    _, delta = made(base, tuned, spec, budget=0.01)
    assert error_of(delta, base, tuned) <= 0.01


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16, np.dtype(np.float32)])
@pytest.mark.parametrize("budget", [0.5, 0.2])
def test_the_budget_is_for_what_is_rebuilt_in_the_type_of_the_base(dtype: Any, budget: float) -> None:
    """The differences are a few steps of bf16, so rounding the sums is a good part of the error."""
    spec = spec_of(300, 400)
    base, tuned = pair(spec, 1 / np.arange(1, 100.0), size=0.3)
    base, tuned = base.astype(dtype), tuned.astype(dtype)
    about, delta = made(base, tuned, spec, budget=budget)
    out = np.empty(base.size, dtype)
    for start, stop in ranges(base.size):
        delta.rebuild(start, stop, base.reshape(-1)[start:stop], out[start:stop])
    wanted, before = tuned.astype(np.float64).reshape(-1), base.astype(np.float64).reshape(-1)
    error = np.linalg.norm(out.astype(np.float64) - wanted) / np.linalg.norm(wanted - before)
    assert error <= budget
    assert about["error"] == pytest.approx(error, rel=1e-3)


def test_types_of_base_and_result_may_differ() -> None:
    spec = spec_of(200, 300)
    base, tuned = pair(spec, np.array([1.0, 0.7, 0.3]), size=5.0)
    base, tuned = base.astype(np.float16), tuned.astype(np.float32)
    _, delta = made(base, tuned, spec, budget=0.05)
    assert error_of(delta, base.astype(np.float32), tuned) <= 0.05


def test_making_is_deterministic() -> None:
    spec = spec_of(300, 400)
    base, tuned = pair(spec, 1 / np.arange(1, 50.0))
    first, second = (made(base, tuned, spec, budget=0.1) for _ in range(2))
    assert first[0] == second[0]
    for field in LowRankDelta.fields:
        np.testing.assert_array_equal(first[1].arrays[field], second[1].arrays[field])


def test_no_difference_has_rank_zero() -> None:
    base = np.ones((50, 60), np.float32)
    about, delta = made(base, base, spec_of(50, 60), budget=0.1)
    assert about["rank"] == 0
    assert not added(delta).any()


@pytest.mark.parametrize("shape", [(4, 4), (1, 4000), (4000,), (), (0, 10), (1 << 12, 1 << 23)])
def test_what_no_rank_makes_smaller_is_refused_unread(shape: tuple[int, ...]) -> None:
    def unread(start: int, stop: int) -> Array:
        raise AssertionError

    spec = spec_of(*shape)
    assert highest_rank(spec) == 0
    assert fit(unread, unread, spec, budget=0.5) is None
    with pytest.raises(UnsupportedError, match="E_LOW_RANK"):
        list(LowRankDelta.make(unread, unread, spec, {}, budget=0.5))


def test_the_highest_rank_is_the_last_below_four_bits() -> None:
    for shape in ((300, 400), (4096, 4096), (5, 100_000), (100_000, 5)):
        spec = spec_of(*shape)
        nbytes = [2 * rank * (spec.rows + spec.columns) for rank in (highest_rank(spec), highest_rank(spec) + 1)]
        assert nbytes[0] < spec.size / 2 <= nbytes[1] or highest_rank(spec) == (1 << 22) // spec.columns


def test_noise_is_refused_after_one_sweep() -> None:
    """Beside the pass that takes the norm there is one for the sweep."""
    spec = spec_of(600, 500)
    rng = np.random.default_rng(0)
    base = rng.standard_normal((600, 500)).astype(np.float32)
    noise = rng.standard_normal((600, 500)).astype(np.float32)
    starts = []

    def tuned(start: int, stop: int) -> Array:
        starts.append(start)
        return elements(base + noise)(start, stop)

    assert fit(elements(base), tuned, spec, budget=0.5) is None
    assert starts.count(0) == 2


def test_a_fit_says_what_it_takes_before_it_is_written() -> None:
    spec = spec_of(300, 200)
    base, tuned = pair(spec, np.array([1.0, 0.5]))
    found = fit(elements(base), elements(tuned), spec, budget=0.01)
    assert isinstance(found, Fit)
    _, delta = made(base, tuned, spec, fitted=found)
    assert found.rank == delta.rank
    assert found.nbytes == sum(array.nbytes for array in delta.arrays.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{"budget": 0.0}, {"budget": 1.0}, {"budget": float("nan")}, {"rank": 0}, {}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    base = np.zeros((50, 50), np.float32)
    with pytest.raises(ArgumentError):
        fit(elements(base), elements(base), spec_of(50, 50), **options)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_differences_that_are_not_finite_are_refused(value: float) -> None:
    base = np.full((50, 60), -3e38, np.float32)
    tuned = base.copy()
    tuned[7, 7] = value
    with pytest.raises(UnsupportedError, match="not finite"):
        fit(elements(base), elements(tuned), spec_of(50, 60), budget=0.1)


def test_memory_is_bounded_by_the_basis_and_not_by_the_tensor() -> None:
    """A tensor of 128 MiB that is never there as a whole: sixteen rows, again and again, times a slope."""
    columns = 2048
    spec = spec_of(1 << 14, columns)
    rows = np.random.default_rng(0).standard_normal((CHUNK // columns, columns)).astype(np.float32)

    def tuned(start: int, stop: int) -> Array:
        return np.concatenate([rows.reshape(-1) * (1 + at / spec.size) for at in range(start, stop, CHUNK)])

    def base(start: int, stop: int) -> Array:
        return np.zeros(stop - start, np.float32)

    tracemalloc.start()
    try:
        records = LowRankDelta.make(base, tuned, spec, {}, budget=0.6)
        nbytes = sum(piece.nbytes for _, _, pieces in records for piece in pieces)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < nbytes < spec.nbytes / 8
    assert peak < spec.nbytes / 2
