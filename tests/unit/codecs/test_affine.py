"""The affine codec: fixed bytes, the derived error bound, edge cases, lossless repacking."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.codec import Grid
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec, has_rows

FORMS = ("scale_bias", "scale_zero", "symmetric")
# Unit roundoff and half the least subnormal of each scale type.
ROUNDING = {"f32": (2.0**-24, 2.0**-150), "f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134)}


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def groups_of(values: np.ndarray, span: int) -> list[np.ndarray]:
    return [values[:, at : at + span] for at in range(0, values.shape[1], span)]


def bound(codec: Affine, values: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """The error bound of docs/formats/affine.md, per weight, in float64."""
    u, least = ROUNDING[codec.scale]
    per_group = []
    for at, group in enumerate(groups_of(values.astype(np.float64), codec.span(values.shape[1]))):
        low, high = group.min(axis=1, keepdims=True), group.max(axis=1, keepdims=True)
        top = np.maximum(np.abs(low), np.abs(high))
        s, z = np.abs(scale[:, at : at + 1].astype(np.float64)), np.abs(offset[:, at : at + 1].astype(np.float64))
        n = codec.levels
        spread = top if codec.form == "symmetric" else high - low
        clipped = u * (np.abs(low) + spread) + (n + 1) * least
        if codec.form == "scale_zero":
            clipped += (1 + z) * least  # the zero multiplies the rounding of a subnormal scale
        if codec.form == "symmetric" and codec.bits == 1:
            clipped += np.maximum(high, 0)  # the grid has no positive point
        arithmetic = 2.0**-21 * (n * s + top) + 2.0**-148
        per_group.append(np.broadcast_to(s / 2 + clipped + arithmetic, group.shape))
    return np.concatenate(per_group, axis=1)


@pytest.mark.parametrize(("form", "scale", "bits"), list(product(FORMS, ROUNDING, range(1, 9))))
@given(seed=st.integers(0, 10**6), magnitude=st.integers(-12, 4), shift=st.sampled_from([0.0, 0.3, -5.0, 100.0]))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_error_stays_within_the_derived_bound(
    form: str, scale: str, bits: int, seed: int, magnitude: int, shift: float
) -> None:
    rng = np.random.default_rng(seed)
    values = ((rng.standard_normal((4, 75)) + shift) * 10.0**magnitude).astype(np.float32)
    values[0] = values[0, 0]
    codec = Affine(bits, 32, form, scale)
    try:
        parts = codec.encode(f32(4, 75), values)
    except UnsupportedError:
        assert scale == "f16"
        assert np.abs(values).max() > 30_000
        return
    offset = parts.get("bias", parts.get("zero", np.zeros_like(parts["scale"])))
    error = np.abs(values.astype(np.float64) - codec.decode(f32(4, 75), parts))
    assert (error <= bound(codec, values, parts["scale"], offset)).all()


@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_as_documented(form: str) -> None:
    """Two rows of five 4-bit weights in groups of four; the last group is short."""
    values = np.array([[0, 1, 2, 15, 7], [-7, 0, 8, 3, 0]], np.float32)
    parts = Affine(4, 4, form, "f16", word="u32").encode(f32(2, 5), values)
    codes, *expected = {
        "scale_bias": ("10f2000070af0000", [[1, 0], [1, 0]], [[0, 7], [-7, 0]]),
        "scale_zero": ("10f2000070af0000", [[1, 7], [1, 0]], [[0, -1], [7, -1]]),
        "symmetric": ("007107000a370000", [[15 / 7, 1], [8 / 7, 0]]),
    }[form]
    assert parts["codes"].dtype == np.uint32
    assert parts["codes"].tobytes().hex() == codes
    for (name, part), want in zip(list(parts.items())[1:], expected, strict=True):
        assert np.array_equal(part, np.array(want, np.float16)), name


def test_value_arithmetic_rounds_once_per_operation() -> None:
    """A product and a sum, each rounded to float32: not a fused multiply-add."""
    scale, bias, code = np.float32(1 + 2**-23), np.float32(-255), 255
    parts = {"codes": np.array([code], np.uint8), "scale": np.array([scale]), "bias": np.array([bias])}
    value = Affine(8, 0).decode(f32(1), parts)[0]
    assert value == np.float32(scale * np.float32(code)) + bias
    assert value != np.float32(float(scale) * code + float(bias))


def test_symmetric_codes_are_twos_complement() -> None:
    parts = {"codes": np.array([0x8F, 0x71], np.uint8), "scale": np.array([2], np.float32)}
    assert Affine(4, 0, "symmetric").decode(f32(4), parts).tolist() == [-2.0, -16.0, 2.0, 14.0]


@pytest.mark.parametrize(("form", "scale"), list(product(FORMS, ROUNDING)))
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 3e-9, 300.0])
def test_constant_groups_are_finite_and_near(form: str, scale: str, value: float) -> None:
    values = np.full((2, 40), value, np.float32)
    codec = Affine(3, 32, form, scale)
    parts = codec.encode(f32(2, 40), values)
    assert codec.check_values(f32(2, 40), parts) is None
    u, least = ROUNDING[scale]
    decoded = codec.decode(f32(2, 40), parts)
    assert np.abs(decoded - values).max() <= 4 * u * abs(value) + 4 * least


def test_a_group_of_negative_zeros_has_a_positive_one() -> None:
    """Which zero is the least of +0 and −0 differs between processors; the bytes must not."""
    parts = Affine(4, 32).encode(f32(1, 32), np.full((1, 32), -0.0, np.float32))
    assert all(part.tobytes() == bytes(part.nbytes) for part in parts.values())


def test_axis_0_is_the_transposed_problem() -> None:
    values = np.random.default_rng(1).standard_normal((70, 6)).astype(np.float32)
    down, along = Affine(5, 32, axis=0, word="u32"), Affine(5, 32, word="u32")
    parts, turned = down.encode(f32(70, 6), values), along.encode(f32(6, 70), values.T)
    assert down.layout(f32(70, 6))["codes"].shape == (11, 6)
    assert all(np.array_equal(parts[part], turned[part].T) for part in parts)
    assert np.array_equal(down.decode(f32(70, 6), parts), along.decode(f32(6, 70), turned).T)


@pytest.mark.parametrize("form", ["scale_bias", "scale_zero", "symmetric"])
@pytest.mark.parametrize("shape", [(2, 70, 3), (2, 3, 65, 4), (5, 7), (0, 4, 3), (2, 0, 3)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_axis_is_the_last_one_moved(form: str, shape: tuple[int, ...], axis: int) -> None:
    codec, last = Affine(3, 32, form, axis=axis), Affine(3, 32, form)
    if axis >= len(shape):
        with pytest.raises(UnsupportedError) as refused:
            codec.layout(f32(*shape))
        assert refused.value.code == "E_SPEC"
        return
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    strided = np.asfortranarray(values)  # not contiguous
    moved = np.moveaxis(values, axis, -1)
    parts, expected = codec.encode(f32(*shape), strided), last.encode(f32(*moved.shape), moved)
    for name, part in codec.layout(f32(*shape)).items():
        assert parts[name].shape == part.shape
        assert np.array_equal(np.moveaxis(parts[name], axis, -1), expected[name])
    decoded = last.decode(f32(*moved.shape), expected)
    assert np.array_equal(np.moveaxis(codec.decode(f32(*shape), parts), axis, -1), decoded)


def test_axis_0_parts_of_a_square_tensor_are_not_its_rows() -> None:
    """A slab of rows would cut groups that run down the columns."""
    spec = f32(64, 64)
    assert has_rows(spec, Affine(4, 32).layout(spec))
    assert not has_rows(spec, Affine(4, 32, axis=0).layout(spec))


@pytest.mark.parametrize(
    "params",
    [
        {"bits": 0, "group": 32}, {"bits": 9, "group": 32}, {"bits": True, "group": 32}, {"bits": 4.0, "group": 32},
        {"bits": 4, "group": -1}, {"bits": 4, "group": 2**31}, {"bits": 4, "group": "32"}, {"bits": 4, "group": True},
        {"bits": 4, "group": 32, "form": "cubic"}, {"bits": 4, "group": 32, "scale": "f64"},
        {"bits": 4, "group": 32, "word": "u16"}, {"bits": 4, "group": 32, "axis": -2}, {"bits": 4, "group": 32, "axis": False},
        {"bits": 4, "group": 32, "packing": "middle"}, {"bits": 3, "group": 32, "packing": "halves-low"},
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Affine(**params)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [TensorSpec((), DType.F16), TensorSpec((4, 32), DType.F16)])
def test_specs_it_cannot_decode_to_are_refused(spec: TensorSpec) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Affine(4, 32).layout(spec)
    assert caught.value.code == "E_SPEC"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Affine(4, 32).encode(f32(2), np.array([1, bad], np.float32))
    assert caught.value.code == "E_NONFINITE"


@pytest.mark.parametrize("form", FORMS)
def test_weights_beyond_the_scale_type_are_refused(form: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Affine(1, 32, form, "f16").encode(f32(2), np.array([-1e6, 1e6], np.float32))
    assert caught.value.code == "E_RANGE"


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_would_overflow_while_decoding_are_refused(form: str) -> None:
    """s · q is formed before the bias brings it back into range."""
    top = np.finfo(np.float32).max
    codec, values = Affine(8, 0, form), np.array([-1, 0, 1], np.float32)
    with pytest.raises(UnsupportedError) as caught:
        codec.encode(f32(3), values * np.float32(0.8 * top))
    assert caught.value.code == "E_RANGE"
    large = values * (top / 4)
    assert np.abs(codec.decode(f32(3), codec.encode(f32(3), large)) / large[2] - values).max() < 0.01


def test_a_nan_scale_is_reported() -> None:
    codec = Affine(4, 32)
    parts = dict(codec.encode(f32(1, 32), np.ones((1, 32), np.float32)))
    parts["scale"] = np.array([[np.nan]], np.float32)
    assert "scale" in str(codec.check_values(f32(1, 32), parts))


# Lossless repacking


def grid_of(bits: int, columns: int = 64, group: int = 32) -> Grid:
    """A grid around zero with scales exact in half precision, as ggml's types have them."""
    rng = np.random.default_rng(bits)
    scale = rng.integers(-64, 64, (3, columns // group)).astype(np.float32) / 256
    codes = rng.integers(0, 2**bits, (3, columns)).astype(np.uint8)
    return Grid(bits, group, codes, scale, -scale * 2 ** (bits - 1))


@pytest.mark.parametrize(
    ("form", "bits", "scale", "packing"), list(product(FORMS, (4, 8), ("f32", "f16", "bf16"), ("little", "halves-low")))
)
def test_a_grid_passes_through_every_form(form: str, bits: int, scale: str, packing: str) -> None:
    grid = grid_of(bits)
    codec = Affine(bits, 32, form, scale, packing)
    parts = codec.from_grid(f32(3, 64), grid)
    values = np.repeat(grid.scale, 32, axis=1) * grid.codes + np.repeat(grid.bias, 32, axis=1)
    assert np.array_equal(codec.decode(f32(3, 64), parts), values)
    back = codec.grid(f32(3, 64), parts)
    assert np.array_equal(back.scale, grid.scale)
    assert np.array_equal(back.bias, grid.bias)
    assert np.array_equal(back.codes, grid.codes)


def test_wider_codes_and_smaller_groups_hold_the_same_grid() -> None:
    grid = grid_of(4, group=64)
    codec = Affine(6, 16)
    values = np.repeat(grid.scale, 64, axis=1) * grid.codes + np.repeat(grid.bias, 64, axis=1)
    assert np.array_equal(codec.decode(f32(3, 64), codec.from_grid(f32(3, 64), grid)), values)


@pytest.mark.parametrize(
    ("codec", "change"),
    [
        (Affine(3, 32), {}),  # a code above 7
        (Affine(4, 64), {}),  # two scales in one group
        (Affine(4, 48), {}),  # groups that straddle
        (Affine(4, 32, axis=0), {}),
        (Affine(4, 32, scale="f16"), {"scale": np.full((3, 2), 1 / 3, np.float32)}),
        (Affine(4, 32, scale="bf16"), {"bias": np.full((3, 2), 1 + 2**-9, np.float32)}),
        (Affine(4, 32, scale="f16"), {"scale": np.full((3, 2), 1e6, np.float32)}),
        (Affine(4, 32, "symmetric"), {"bias": np.zeros((3, 2), np.float32)}),  # zero is not in the middle
        (Affine(4, 32, "symmetric"), {"bias": np.full((3, 2), 0.3, np.float32)}),
        (Affine(4, 32, "scale_zero"), {"scale": np.zeros((3, 2), np.float32), "bias": np.ones((3, 2), np.float32)}),
    ],
)
def test_what_is_not_exact_is_refused(codec: Affine, change: dict[str, np.ndarray]) -> None:
    grid = grid_of(4)
    grid = Grid(grid.bits, grid.group, grid.codes, change.get("scale", grid.scale), change.get("bias", grid.bias))
    with pytest.raises(UnsupportedError) as caught:
        codec.from_grid(f32(3, 64), grid)
    assert caught.value.code == "E_GRID"


def test_a_form_whose_values_round_differently_has_no_grid() -> None:
    """(q − z) is rounded before the scale is applied: with a tiny z no s · q + b gives the same."""
    codec = Affine(8, 0, "scale_zero")
    parts = {
        "codes": np.arange(256, dtype=np.uint8)[None],
        "scale": np.array([[1 / 3]], np.float32),
        "zero": np.array([[0.1]], np.float32),
    }
    assert codec.grid_spec is None
    with pytest.raises(UnsupportedError) as caught:
        codec.grid(f32(1, 256), parts)
    assert caught.value.code == "E_GRID"


@pytest.mark.parametrize("packing", ["little", "big"])
@pytest.mark.parametrize("group", [32, 64, 0])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_a_quotient_is_rounded_once(packing: str, group: int, kind: type) -> None:
    """Values just below, at and above a tie: adding half the range before rounding would take some for the tie itself."""
    ties = np.arange(-127.5, 128, dtype=np.float32)
    near = np.concatenate([np.nextafter(ties, np.float32(-1e9)), ties, np.nextafter(ties, np.float32(1e9))])
    rows = np.resize(near.astype(kind), (3, 768)).astype(np.float32)
    rows[:, ::32] = 127  # so that every scale is 1
    rows = np.clip(rows, -127, 127)
    codec = Affine(8, group, "symmetric", packing=packing)
    parts = codec.encode(f32(3, 768), rows.astype(kind))
    assert (parts["scale"] == 1).all()
    assert np.array_equal(codec.decode(f32(3, 768), parts), np.rint(rows))


@given(bits=st.integers(1, 8), scale=st.sampled_from(["f16", "bf16"]), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_the_planner_may_trust_grid_spec(bits: int, scale: str, seed: int) -> None:
    """Where there is a grid_spec, a scale_bias codec of its scale type holds every value the codec can store."""
    rng = np.random.default_rng(seed)
    codec = Affine(bits, 32, "symmetric", scale)
    spec = f32(2, 64)
    parts = {
        "codes": rng.integers(0, 256, codec.layout(spec)["codes"].shape).astype(np.uint8),
        "scale": rng.standard_normal((2, 2)).astype(codec.layout(spec)["scale"].dtype.numpy),
    }
    target = codec_for(codec.same_grid[0])
    moved = target.from_grid(spec, codec.grid(spec, parts))
    assert np.array_equal(target.decode(spec, moved), codec.decode(spec, parts))


@pytest.mark.parametrize("form", ["scale_bias", "symmetric"])
@pytest.mark.parametrize("scale", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_the_kernel_fills_what_the_general_path_does(form: str, scale: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for axis, group, word in product((-1, 0), (0, 32, 50), ("u8", "u32")):
        codec, spec = Affine(bits, group, form, scale, word=word, axis=axis), f32(5, 150)
        values = (rng.standard_normal(spec.shape) * 10.0 ** rng.integers(-3, 3, (5, 1))).astype(np.float32)
        rows = codec.finite_rows(spec, values)
        found, chosen = codec.encode(spec, values), codec.representable(*codec.span_of(rows))
        expected = codec.store(spec, codec.nearest_codes(rows, *chosen), *chosen)
        assert {part: array.tobytes() for part, array in found.items()} == {
            part: array.tobytes() for part, array in expected.items()
        }


@pytest.mark.parametrize(
    "codec", [Affine(4, 32), Affine(8, 64, "symmetric", axis=0), Affine(4, 32, packing="big"), Affine(3, 0, "scale_zero")]
)
def test_decoding_into_bf16_rounds_the_values(codec: Affine) -> None:
    spec = f32(64, 96)
    parts = codec.encode(spec, np.random.default_rng(1).standard_normal(spec.shape).astype(np.float32))
    out = np.zeros(spec.shape, DType.BF16.numpy)
    assert codec.decode(spec, parts, out) is out
    assert np.array_equal(out, codec.decode(spec, parts).astype(out.dtype))
