"""Quantizers: the rule of MLX as documented, what each refuses, and which one is the default."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs import Codec
from flyweight.codecs.affine import Affine
from flyweight.codecs.blockwise import Blockwise
from flyweight.codecs.palette import Palette
from flyweight.codecs.raw import Raw
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS, Quantizer
from support.importance import weighing

FILLED: dict[str, Codec] = {
    "kmeans": Palette(4),
    "coremltools": Blockwise("i4", "1"),
    "coremltools_symmetric": Blockwise("u4", "1", offset="data"),
}
"""A codec for each quantizer that does not fill affine grids. `gptq` takes nothing without a Gram matrix: `test_gptq`."""
EACH = pytest.mark.parametrize(
    ("quantizer", "codec"),
    [
        pytest.param(fill, FILLED.get(fill.name, Affine(4, 32, scale="f16")), id=fill.name)
        for fill in QUANTIZERS
        if fill.name != "gptq"
    ],
)


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def edge_of_one_group(values: np.ndarray, bits: int) -> tuple[np.float32, np.float32, list[int]]:
    """The rule written out for one group, number by number."""
    n = np.float32(2**bits - 1)
    low, high = min(values), max(values)
    scale = max(np.float32((high - low) / n), np.float32(1e-7))
    if bits == 1:
        bias = low
    else:
        below = abs(low) > abs(high)
        scale, far = (scale, low) if below else (-scale, high)
        steps = np.rint(far / scale)
        bias = np.float32(0)
        if steps != 0:
            scale, bias = far / steps, far
    return scale, bias, [int(min(max(np.rint((w - bias) / scale), 0), n)) for w in values]


@pytest.mark.parametrize("bits", range(1, 9))
def test_edge_follows_its_rule(bits: int) -> None:
    rng = np.random.default_rng(bits)
    values = (rng.standard_normal((6, 70)) * 10.0 ** rng.integers(-9, 3, (6, 1))).astype(np.float32)
    values[0], values[1], values[2] = 0.5, np.abs(values[1]), -np.abs(values[2])
    codec = Affine(bits, 32)
    parts = QUANTIZERS["anchored"](values, codec, f32(6, 70))
    grid = codec.grid(f32(6, 70), parts)
    for row in range(6):
        for group, start in enumerate((0, 32, 64)):
            scale, bias, codes = edge_of_one_group(values[row, start : start + 32], bits)
            assert grid.scale[row, group] == scale
            assert grid.bias[row, group] == bias
            assert grid.codes[row, start : start + 32].tolist() == codes


@pytest.mark.parametrize("bits", range(2, 9))
def test_edge_keeps_zero_and_the_larger_edge(bits: int) -> None:
    """Up to a unit in the last place: e / q₀ · q₀ is not always e again."""
    values = np.random.default_rng(bits).standard_normal((8, 64)).astype(np.float32)
    values[:, 3] = 0
    codec = Affine(bits, 64)
    decoded = codec.decode(f32(8, 64), QUANTIZERS["anchored"](values, codec, f32(8, 64)))
    far = np.abs(values).argmax(axis=1)
    top = np.abs(values).max(axis=1)
    assert (np.abs(decoded[:, 3]) <= top * 2**-23).all()
    assert (decoded[np.arange(8), far] == values[np.arange(8), far]).all()


def test_edge_refuses_what_is_not_its_form() -> None:
    for codec in (Affine(4, 32, "symmetric"), Affine(4, 32, "scale_zero"), Raw()):
        with pytest.raises(UnsupportedError) as caught:
            QUANTIZERS["anchored"](np.zeros((1, 32), np.float32), codec, f32(1, 32))
        assert caught.value.code == "E_QUANTIZER"


@EACH
def test_weights_that_cannot_be_stored_are_refused(quantizer: Quantizer, codec: Codec) -> None:
    for values, code in (([np.nan, 1], "E_NONFINITE"), ([-1e6, 1e6], "E_RANGE")):
        with pytest.raises(UnsupportedError) as caught:
            quantizer(np.array(values, np.float32), codec, f32(2))
        assert caught.value.code == code


@EACH
def test_every_quantizer_takes_importance_and_refuses_what_is_none(quantizer: Quantizer, codec: Codec) -> None:
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    parts = quantizer(values, codec, f32(4, 64), weighing(np.arange(64, dtype=np.float32)))
    assert {name: part.shape for name, part in parts.items()} == {n: p.shape for n, p in codec.layout(f32(4, 64)).items()}
    for bad in (np.full(64, np.nan), np.full(64, -1.0), np.ones(63)):
        with pytest.raises(UnsupportedError) as caught:
            quantizer(values, codec, f32(4, 64), weighing(bad))
        assert caught.value.code == "E_IMPORTANCE"


@pytest.mark.parametrize("data", ["i4", "i8"])
@pytest.mark.parametrize("block", ["", "1", "1x16", "2x8"])
def test_signed_codes_are_anchored_at_their_least(data: str, block: str) -> None:
    """The extreme of larger magnitude is exact, whichever its sign: it is a power of two here, and so is the scale."""
    values = np.random.default_rng(3).uniform(-0.9, 0.9, (4, 32)).astype(np.float32)
    values[::2, ::8], values[1::2, ::8] = 2, -4
    codec = Blockwise(data, block)
    parts = QUANTIZERS["anchored"](values, codec, f32(4, 32))
    decoded = codec.decode(f32(4, 32), parts)
    far = np.abs(values) == 4 if block in ("", "2x8") else np.abs(values) > 1
    assert np.array_equal(decoded[far], values[far])
    assert (np.sign(parts["scale"]) == (1 if block in ("", "2x8") else np.float32([[-1], [1], [-1], [1]]))).all()
    assert np.abs(decoded - values).max() <= np.abs(parts["scale"]).max() * (0.5 + 2.0**-8)


def test_anchored_signed_codes_lose_less() -> None:
    values = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    codec = Blockwise("i4", "1x32")
    anchored, nearest = (
        float(np.square(codec.decode(f32(64, 64), QUANTIZERS[name](values, codec, f32(64, 64))) - values).sum())
        for name in ("anchored", "nearest")
    )
    assert anchored < 0.85 * nearest


@pytest.mark.parametrize("name", ["nearest", "anchored"])
def test_rules_that_leave_nothing_to_weigh_give_the_same_bytes(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    plain, weighed = (
        QUANTIZERS[name](values, Affine(4, 32), f32(4, 64), weighing(weights)) for weights in (None, np.arange(64.0))
    )
    assert all(np.array_equal(plain[part], weighed[part]) for part in plain)


@pytest.mark.parametrize("name", ["clip", "hqq"])
@pytest.mark.parametrize("codec", [Affine(3, 24), Affine(3, 32, axis=0)], ids=["along rows", "down columns"])
def test_importance_draws_the_error_away(name: str, codec: Affine) -> None:
    """24 also leaves a short last group, which is filled up at no weight."""
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    importance = np.where(np.arange(64) % 4 == 0, 1.0, 0.001)
    if codec.axis == 0:  # every element of such a group has the same weight
        importance = np.ones(64)
    off = [
        (codec.decode(f32(64, 64), QUANTIZERS[name](values, codec, f32(64, 64), weighing(weights))) - values) ** 2
        for weights in (None, importance)
    ]
    weighed = [float((squares * importance).sum()) for squares in off]
    assert weighed[1] < weighed[0] * 0.9 if codec.axis == -1 else weighed[1] == weighed[0]


@pytest.mark.parametrize("quantizer", ["nearest", "clip", "hqq"])
@pytest.mark.parametrize("form", ["scale_bias", "scale_zero"])
@pytest.mark.parametrize("scale", ["f32", "f16", "bf16"])
def test_narrow_groups_far_from_zero_and_next_to_it(quantizer: str, form: str, scale: str) -> None:
    """A step too small for its type, or a zero too many steps away, must not cost the value itself."""
    noise = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    values = np.float32([[1.0], [1000.0], [-3.0], [0.0], [0.0], [1e-30]]) + noise * np.float32(
        [[1e-6], [1e-3], [1e-9], [1e-30], [1e-44], [1e-44]]
    )
    codec = Affine(4, 32, form, scale)
    decoded = codec.decode(f32(6, 64), QUANTIZERS[quantizer](values, codec, f32(6, 64)))
    assert (np.abs(decoded - values) <= np.abs(values) * 2.0**-7 + 2.0**-24).all()


@EACH
@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (5,)])
def test_small_and_empty_tensors(quantizer: Quantizer, codec: Codec, shape: tuple[int, ...]) -> None:
    parts = quantizer(np.ones(shape, np.float32), codec, f32(*shape))
    assert {name: part.shape for name, part in parts.items()} == {n: p.shape for n, p in codec.layout(f32(*shape)).items()}


def test_nearest_is_the_codecs_own_encoder() -> None:
    values = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    codec = Affine(4, 32)
    mine, own = QUANTIZERS["nearest"](values, codec, f32(2, 64)), codec.encode(f32(2, 64), values)
    assert all(np.array_equal(mine[name], own[name]) for name in own)


def error(values: np.ndarray, codec: Affine, quantizer: str) -> float:
    spec = f32(*values.shape)
    decoded = codec.decode(spec, QUANTIZERS[quantizer](values, codec, spec))
    return float(np.mean((decoded - values) ** 2, dtype=np.float64))


@pytest.mark.parametrize(("bits", "group"), [(2, 32), (2, 64), (2, 128), (4, 32), (4, 64), (5, 64), (6, 64), (8, 32), (8, 64)])
def test_the_default_is_the_one_with_less_error(bits: int, group: int) -> None:
    """On bell-shaped weights, as on a real model's (docs/decisions/0004-mlx-quantizer.md)."""
    values = np.random.default_rng(3).standard_normal((64, 1024)).astype(np.float32)
    codec = Affine(bits, group, scale="f16")
    errors = {name: error(values, codec, name) for name in ("nearest", "anchored")}
    assert min(errors, key=errors.__getitem__) == codec.quantizer


def test_the_default_of_anything_else_is_nearest() -> None:
    assert {codec.quantizer for codec in (Raw(), Affine(2, 32, "symmetric"), Affine(3, 64))} == {"nearest"}


def test_the_default_of_palettes_is_the_optimal_table() -> None:
    """Errors on a real model are in docs/formats/palette.md."""
    assert Palette(4).quantizer == "kmeans"
