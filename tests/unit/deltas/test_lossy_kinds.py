"""Lossy kinds of delta: how close they come, what they leave alone, and what they refuse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs.entropy_coded import CHUNK
from flyweight.deltas import KINDS
from flyweight.deltas.kind import ranges
from flyweight.deltas.kinds.int4_delta import grid_for, levels_of
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import ArgumentError, MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec

LOSSY = ("sparse", "quantized", "int4")
SHAPES = [(), (1,), (1, 1), (0,), (0, 4), (4, 0), (2,), (33,), (3, 5), (5, 7, 3), (40, 1), (1, 40)]
Arrays = dict[str, np.ndarray]


def made(kind: str, base: np.ndarray, tuned: np.ndarray, **options: Any) -> tuple[dict[str, Any], Arrays]:
    """What a delta says, and what it stores."""
    about: dict[str, Any] = {}
    flat, flat_tuned = base.reshape(-1), tuned.reshape(-1)
    spec = TensorSpec(tuned.shape, DType.F32)
    records = KINDS[kind].make(lambda a, b: flat[a:b], lambda a, b: flat_tuned[a:b], spec, about, **options)
    arrays = {record.field: np.concatenate([np.zeros(0, record.dtype), *record.pieces]) for record in records}
    assert {field: array.dtype.name for field, array in arrays.items()} == {
        field: types[0] for field, types in KINDS[kind].fields.items()
    }
    return about, arrays


def rebuilt(kind: str, base: np.ndarray, about: dict[str, Any], arrays: Arrays, chunks: int = 1) -> np.ndarray:
    delta = KINDS[kind](TensorSpec(base.shape, DType.F32), about, arrays)
    delta.check()
    flat, out = base.reshape(-1), np.empty(base.size, np.float32)
    for start, stop in ranges(base.size, chunks):
        delta.rebuild(start, stop, flat[start:stop], out[start:stop])
    return out.reshape(base.shape)


def pair(shape: tuple[int, ...], seed: int, spread: float = 1e-2, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """A base, and a fine-tune that changes a share of its weights."""
    rng = np.random.default_rng(seed)
    base = np.asarray(rng.normal(size=shape), np.float32)
    change = rng.normal(0, spread, shape) * (rng.random(shape) < share)
    return base, np.asarray(base + change.astype(np.float32), np.float32)


def change_of(base: np.ndarray, tuned: np.ndarray) -> np.ndarray:
    return np.asarray(tuned.astype(np.float32) - base.astype(np.float32))


shapes = st.sampled_from([*SHAPES, (130, 1009)])
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16])


@settings(deadline=None, max_examples=80)
@given(shape=shapes, seed=seeds, dtype=dtypes, sparsity=st.floats(0, 0.999))
def test_sparse_gives_the_largest_changes_back_and_leaves_the_rest(
    shape: tuple[int, ...], seed: int, dtype: type, sparsity: float
) -> None:
    base, tuned = (array.astype(dtype) for array in pair(shape, seed))
    about, arrays = made("sparse", base, tuned, sparsity=sparsity)
    change = change_of(base, tuned).reshape(-1)
    count = min(max(1, int(base.size * (1 - sparsity))), base.size)
    kept = np.sort(np.argsort(-np.abs(change), kind="stable")[:count])
    kept = kept[change[kept] != 0] if change.any() else kept[:1]
    assert arrays["indices"].tolist() == kept.tolist()
    expected = base.astype(np.float32).reshape(-1)
    expected[kept] += change[kept]
    assert np.array_equal(rebuilt("sparse", base, about, arrays).reshape(-1), expected)


@settings(deadline=None, max_examples=80)
@given(shape=shapes, seed=seeds, dtype=dtypes)
def test_signs_add_or_subtract_the_mean_of_the_row(shape: tuple[int, ...], seed: int, dtype: type) -> None:
    """A scale is the mean, to half a step of f16: at most 2^-11 of it, or 2^-25 where f16 is subnormal."""
    base, tuned = (array.astype(dtype) for array in pair(shape, seed))
    about, arrays = made("quantized", base, tuned)
    change = change_of(base, tuned)
    rows = change.reshape(len(change), -1) if change.ndim > 1 and change.size else change.reshape(1, -1)
    scales = arrays["scales"].astype(np.float64)
    if base.size:
        means = np.abs(rows.astype(np.float64)).mean(axis=1)
        assert (np.abs(scales - means) <= means * 2**-11 + 2**-25).all()
    signed = np.where(rows >= 0, 1, -1) * (scales[:, None] if base.size else 1)
    expected = base.astype(np.float32) + signed.reshape(shape).astype(np.float32)
    assert np.array_equal(rebuilt("quantized", base, about, arrays), expected)


def slack(scale: float, zero_point: float) -> float:
    """What rounding to f32 adds to half a step: the difference, the quotient and the three operations of a level each add 2^-24
    of a number that is at most 16 steps and the zero point."""
    return 5 * 2**-24 * (16 * scale + abs(zero_point))


@settings(deadline=None, max_examples=80)
@given(shape=shapes, seed=seeds, dtype=dtypes, share=st.sampled_from([0.0, 0.1, 0.5, 1.0]), fraction=st.floats(0, 0.5))
def test_int4_is_within_half_a_step_and_leaves_unchanged_weights_alone(
    shape: tuple[int, ...], seed: int, dtype: type, share: float, fraction: float
) -> None:
    base, tuned = (array.astype(dtype) for array in pair(shape, seed, share=share))
    about, arrays = made("int4", base, tuned, outlier_fraction=fraction)
    count = max(1, int(base.size * fraction)) if base.size else 0
    assert about == {"outlier_fraction": fraction, "n_elements": base.size, "n_outliers": count}
    change = change_of(base, tuned).reshape(-1)
    zeros = np.zeros(shape, np.float32)
    found = rebuilt("int4", zeros, about, arrays).reshape(-1)  # on zeros, the delta itself
    outliers = arrays["outlier_idx"]
    assert np.array_equal(found[outliers], change[outliers].astype(np.float16).astype(np.float32))
    scale, zero_point = (float(arrays[key][0]) for key in ("scale", "zero_point"))
    others = np.delete(np.arange(base.size), outliers)
    assert (np.abs(found[others] - change[others]) <= scale / 2 + slack(scale, zero_point)).all()
    assert not found[change == 0].any()
    assert np.array_equal(rebuilt("int4", base, about, arrays).reshape(-1), base.astype(np.float32).reshape(-1) + found)


magnitudes = st.floats(0, 1000, width=32)


@settings(deadline=None, max_examples=300)
@given(below=magnitudes, above=magnitudes)
def test_the_grid_has_zero_and_is_hardly_coarser_than_the_range_asks(below: float, above: float) -> None:
    """Changes of 12 steps or fewer always fit: each end is rounded by half a step at most, and of three codes one can be zero.
    Scales of seven bits are 1/64 apart; none is below 2^-24."""
    scale, zero_point = grid_for(-below, above)
    if below or above:
        levels = levels_of(scale, zero_point)[0].astype(np.float64)
        assert 0 in levels
        assert float(scale) <= (below + above) / 12 * (1 + 1 / 64) + 2**-24
        for end in (-below, above):
            assert np.abs(levels - end).min() <= float(scale) / 2 + slack(float(scale), float(zero_point))
    else:
        assert (scale, zero_point) == (1, 0)


@settings(deadline=None, max_examples=100)
@given(least=st.floats(2**-20, 1000, width=32), width=st.floats(0, 100, width=32), sign=st.sampled_from([1, -1]))
def test_the_grid_of_changes_that_all_go_one_way_begins_with_them(least: float, width: float, sign: int) -> None:
    ends = sorted((sign * least, sign * float(np.float32(least + width))))
    scale, zero_point = grid_for(*ends)
    levels = levels_of(scale, zero_point)[0].astype(np.float64)
    for end in ends:  # half a step; or, of a single change, what f16 takes of it
        assert (
            np.abs(levels - end).min()
            <= max(float(scale) / 2, 0) * (ends[0] != ends[1])
            + abs(end) * 2**-11 * (ends[0] == ends[1])
            + slack(float(scale), float(zero_point))
            + 2**-25
        )


@pytest.mark.parametrize("value", [0.25, -0.25, 0.0])
def test_int4_of_one_change_for_all_is_exact(value: float) -> None:
    base = np.zeros((3, 5), np.float32)
    about, arrays = made("int4", base, base + np.float32(value))
    assert np.array_equal(rebuilt("int4", base, about, arrays), base + np.float32(value))


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_array_without_changes_stays_as_it_is(kind: str, shape: tuple[int, ...]) -> None:
    base, _ = pair(shape, 1)
    about, arrays = made(kind, base, base)
    assert np.array_equal(rebuilt(kind, base, about, arrays), base)


def test_an_array_known_to_be_unchanged_is_not_read() -> None:
    about: dict[str, Any] = {}
    for size in (0, 7):
        spec = TensorSpec((size,), DType.F32)
        records = KINDS["sparse"].make(None, None, spec, about, unchanged=True)  # type: ignore[arg-type]
        arrays = {record.field: np.concatenate(list(record.pieces)) for record in records}
        assert {field: array.tolist() for field, array in arrays.items()} == {
            "indices": [0] * min(size, 1),
            "values": [0.0] * min(size, 1),
        }
        base = np.arange(size, dtype=np.float32)
        assert np.array_equal(rebuilt("sparse", base, about, arrays), base)


@pytest.mark.parametrize("kind", LOSSY)
def test_ranges_give_the_same_however_many_chunks_they_are(kind: str) -> None:
    """In rows that end in the middle of bytes, of ranges and of pairs of codes."""
    base, tuned = pair((1003, 393), 3)
    assert base.size > 3 * CHUNK
    about, arrays = made(kind, base, tuned)
    whole = rebuilt(kind, base, about, arrays, chunks=100)
    assert np.array_equal(rebuilt(kind, base, about, arrays), whole)
    assert np.array_equal(rebuilt(kind, base, about, arrays, chunks=2), whole)


@pytest.mark.parametrize("kind", LOSSY)
def test_a_sum_with_minus_zero_is_zero(kind: str) -> None:
    """−0 + 0 = 0, whether the zero is stored or left out, as in the public reader."""
    base = np.array([-0.0, -0.0, 1.0], np.float32)
    tuned = np.array([-0.0, -0.0, 1.0], np.float32) if kind == "quantized" else np.array([-0.0, -0.0, 5.0], np.float32)
    assert not np.signbit(rebuilt(kind, base, *made(kind, base, tuned))).any()


def test_the_result_is_rounded_once_to_its_type() -> None:
    base, tuned = (array.astype(ml_dtypes.bfloat16) for array in pair((300,), 4))
    about, arrays = made("int4", base, tuned)
    wide = rebuilt("int4", base, about, arrays)
    delta, out = KINDS["int4"](TensorSpec((300,), DType.F32), about, arrays), np.empty(300, ml_dtypes.bfloat16)
    delta.rebuild(0, 300, base, out)
    assert np.array_equal(out, wide.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("size", [1, 2, 15, 4096])
def test_layout_2_has_codes_for_outliers_too(index: type, size: int) -> None:
    """Against the formula, all at once: every weight by its code, then the outliers over them."""
    rng = np.random.default_rng(size)
    codes = rng.integers(0, 16, size)
    outliers = np.sort(rng.choice(size, max(1, size // 20), replace=False))
    values = rng.normal(size=len(outliers)).astype(np.float16)
    padded = np.append(codes, 0)[: size + size % 2].astype(np.uint8)
    arrays = {
        "outlier_idx": outliers.astype(index),
        "outlier_vals": values,
        "scale": np.float16([0.37]),
        "zero_point": np.float16([-2.1]),
        "packed": padded[::2] << 4 | padded[1::2],
    }
    about = {"n_elements": size, "n_outliers": len(outliers), "outlier_fraction": 0.05, "int4_layout": 2}
    delta = codes.astype(np.float32) / 15.0 * (float(np.float16(0.37)) * 15.0) + float(np.float16(-2.1))
    assert delta.dtype == np.float32
    delta[outliers] = values
    base = rng.normal(size=size).astype(np.float32)
    assert np.array_equal(rebuilt("int4", base, about, arrays), base + delta)


# Refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_changes_that_are_not_finite_are_refused(kind: str, value: float) -> None:
    base, tuned = pair((20, 7), 5)
    tuned[13, 2] = value
    with pytest.raises(UnsupportedError, match=r"NaN or infinite.*strategy exact"):
        made(kind, base, tuned)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("quantized", [1e6, 1e6, 1e6]),
        ("int4", [1e6, 1e-3, 1e-3]),
        ("int4", [1e6, 9e5, -9e5]),
        ("int4", [1e6, 9e5, 8e5]),
        ("int4", [1e6, 9e5, 9e5]),
        ("int4", [-1e6, -9e5, -8e5]),
        ("int4", [3e38, -3e38, 3e38]),
    ],
)
def test_changes_beyond_f16_are_refused(kind: str, change: list[float]) -> None:
    base = np.zeros(3, np.float32)
    with pytest.raises(UnsupportedError, match=r"f16.*strategy exact"):
        made(kind, base, np.array(change, np.float32))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("sparse", {"sparsity": wrong}) for wrong in (1, -0.1, float("nan"), "0.5", True, None)),
        *(("int4", {"outlier_fraction": wrong}) for wrong in (1, -1, float("inf"), [0.1])),
        ("quantized", {"sparsity": 0.5}),
        ("sparse", {"sparcity": 0.5}),
    ],
)
def test_options_that_mean_nothing_are_refused(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        made(kind, *pair((4,), 6), **options)


def spoiled(kind: str, **changes: Any) -> tuple[dict[str, Any], Arrays]:
    """A delta of 20 × 7 weights in which some things are other than they should be."""
    about, arrays = made(kind, *pair((20, 7), 7))
    for key, value in changes.items():
        if key in arrays:
            arrays[key] = value(arrays[key].copy())
        else:
            about[key] = value
    return about, arrays


def put(at: int, value: float) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[at] = value
        return array

    return change


def cut(array: np.ndarray) -> np.ndarray:
    return array[:-1]


def longer(array: np.ndarray) -> np.ndarray:
    return np.append(array, array[-1:])


HOSTILE = [
    *(("sparse", {"indices": put(at, value)}) for at, value in ((0, -1), (-1, 140), (-1, 1 << 62), (0, -(1 << 63)), (3, 0))),
    ("sparse", {"indices": lambda array: array[::-1].copy()}),
    ("sparse", {"indices": lambda array: np.repeat(array[:1], len(array))}),
    ("sparse", {"indices": cut}),
    ("sparse", {"values": cut}),
    ("sparse", {"indices": lambda _: np.arange(141), "values": lambda _: np.zeros(141, np.float32)}),
    *(("sparse", {"sparsity": value}) for value in (-0.5, 1.5, "0.9", True, None, [], float("nan"))),
    *(
        ("quantized", {key: value})
        for key in ("n_elements", "n_cols")
        for value in (0, -1, 141, 140.0, True, None, "7", 1 << 80)
    ),
    *(("quantized", {"scales": change}) for change in (cut, longer)),
    *(("quantized", {"packed_signs": change}) for change in (cut, longer)),
    *(
        ("int4", {key: value})
        for key in ("n_elements", "n_outliers")
        for value in (0, -1, 141, 1.0, 140.0, True, None, "1", {}, 1 << 80)
    ),
    *(("int4", {"int4_layout": value}) for value in (0, 3, 1.0, True, "2", None)),
    *(("int4", {"outlier_fraction": value}) for value in (-1, 2, "0.01", float("nan"))),
    *(("int4", {"outlier_idx": put(0, value)}) for value in (-1, 140, 1 << 62)),
    *(("int4", {"outlier_idx": change}) for change in (cut, longer)),
    *(("int4", {"outlier_vals": change}) for change in (cut, longer)),
    *(("int4", {key: change}) for key in ("scale", "zero_point") for change in (cut, longer)),
    *(("int4", {"packed": change}) for change in (cut, longer)),
]


@pytest.mark.parametrize(("kind", "changes"), HOSTILE)
def test_hostile_values_are_refused(kind: str, changes: dict[str, Any]) -> None:
    about, arrays = spoiled(kind, **changes)
    with pytest.raises(MalformedError) as refused:
        rebuilt(kind, np.zeros((20, 7), np.float32), about, arrays)
    assert refused.value.code == "E_DELTA"


NOT_FINITE = [
    ("sparse", "values"), ("quantized", "scales"), ("int4", "outlier_vals"), ("int4", "scale"), ("int4", "zero_point"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "field"), NOT_FINITE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_read_and_told(kind: str, field: str, value: float) -> None:
    """The public tool writes them where a fine-tune has such weights, and its reader gives such weights back."""
    about, arrays = spoiled(kind, **{field: put(0, value)})
    assert not np.isfinite(rebuilt(kind, np.zeros((20, 7), np.float32), about, arrays)).all()
    assert KINDS[kind](TensorSpec((20, 7), DType.F32), about, arrays).complaint() == f"{field} has NaN or infinity"


@pytest.mark.parametrize("kind", LOSSY)
def test_an_array_that_claims_to_be_huge_takes_no_memory(kind: str) -> None:
    """Its size is a number in the header alone; what cannot be stored in so few bytes is refused, and the rest is read."""
    about, arrays = spoiled(kind)
    spec = TensorSpec((1 << 20, 1 << 42), DType.F32)
    if kind != "sparse":
        about["n_elements"] = spec.size
        with pytest.raises(MalformedError):
            KINDS[kind](spec, about, arrays)
        return
    delta = KINDS[kind](spec, about, arrays)
    delta.check()
    out = np.empty(10, np.float32)
    delta.rebuild(1 << 61, (1 << 61) + 10, np.ones(10, np.float32), out)
    assert (out == 1).all()


@pytest.mark.parametrize("kind", LOSSY)
def test_keys_that_are_not_known_are_passed_over(kind: str) -> None:
    about, arrays = spoiled(kind, comment="a note", another=[1, 2])
    rebuilt(kind, np.zeros((20, 7), np.float32), about, arrays)
