"""The codec of textures: a block read by hand, every kind of illegal block, the pair, and a world without the encoder."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from flyweight.codecs import astc
from flyweight.codecs.astc import Astc
from flyweight.foundation.astc_footprints import FOOTPRINTS
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from support import GOLDEN
from support.astc_blocks import as_halves, one_colour

TEXTURES = GOLDEN / "astc"
UNIT = np.array([0, 0, 0x3F800000, 0], "<u4")
"""id 0, scale 1, zero 0"""


def spec_of(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def texels(codec: Astc, blocks: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """UNORM16, through the decoded values."""
    values = codec.decode(spec_of(rows, columns), {"blocks": blocks, "pair": UNIT})
    return np.rint(values.astype(np.float64) * 65535).astype(np.int64)


def block(bits: int) -> np.ndarray:
    return np.frombuffer(bits.to_bytes(16, "little"), np.uint8)


def weights_of(*codes: int, bits: int) -> int:
    """A stream of weights, which runs downwards from bit 127."""
    stream = sum(code << bits * at for at, code in enumerate(codes))
    return int(f"{stream:0128b}"[::-1], 2)


LUMINANCE = 0 << 13
GREY_4X4 = 0b000_01000010
"""A grid of 4 × 4, one plane, weights of two bits: D P WW HH z00 xy = 0 0 00 10 0 00 10."""


def test_a_block_read_by_hand() -> None:
    ends = 255 << 17 + 8  # 79 bits are left for two integers: eight each, 0 and 255
    found = texels(Astc(4, 4), block(GREY_4X4 | LUMINANCE | ends | weights_of(*range(4), *[0] * 11, 2, bits=2))[None], 4, 4)
    weights = np.array([0, 21, 43, 64])  # 00, 01, 10, 11 repeated to six bits, and one more above 32
    assert found[0].tolist() == ((65535 * weights + 32) // 64).tolist()
    assert found[3, 3] == (65535 * 43 + 32) // 64
    assert not found[1:3].any()


def test_a_value_is_each_operation_rounded_once() -> None:
    pair = np.concatenate([np.zeros(2, "<u4"), np.array([3.3, -1.7], "<f4").view("<u4")])
    values = Astc(8, 5).decode(spec_of(1, 3), {"blocks": one_colour(12345)[None], "pair": pair})
    t = np.float32(12345) / np.float32(65535)
    assert (values == np.float32(-1.7) + np.float32(3.3) * t).all()


@pytest.mark.parametrize("file", ["images", "blocks"])
def test_golden_textures(file: str) -> None:
    with np.load(TEXTURES / f"{file}.npz") as golden:
        named = [name.removesuffix("_red") for name in golden.files if name.endswith("_red")]
        assert len(named) == (len(FOOTPRINTS) if file == "blocks" else 5)
        for name in named:
            width, height = map(int, name.split("x"))
            blocks, red = golden[f"{name}_blocks"], golden[f"{name}_red"]
            if file == "blocks":
                red = red.reshape(-1, width)  # one block above the other
            assert np.array_equal(as_halves(texels(Astc(width, height), blocks, *red.shape)), red), name


def number(array: np.ndarray) -> int:
    return int.from_bytes(array.tobytes(), "little")


ONE_BIT_7X7 = 0b01_10_01_0_01_00
THREE_PARTS, FOUR_PARTS, TWO_PLANES, FULL = 2 << 11, 3 << 11, 1 << 10, number(one_colour(1))
# A footprint, an illegal block, and the same one with nothing but its fault undone.
ILLEGAL = {
    "a reserved mode": (4, 0, GREY_4X4),
    "a mode kept for later": (4, FULL ^ 1 << 5, FULL),
    "a grid wider than the block": (4, GREY_4X4 | 1 << 7, GREY_4X4),
    "a grid taller than the block": (4, GREY_4X4 | 1 << 5, GREY_4X4),
    "81 weights": (12, ONE_BIT_7X7 | 2 << 9 | 2 << 5, ONE_BIT_7X7),
    "16 bits of weights": (4, GREY_4X4 ^ 0b11, GREY_4X4),
    "128 bits of weights": (4, GREY_4X4 | TWO_PLANES | 1 << 9, GREY_4X4 | TWO_PLANES),
    "two planes and four partitions": (4, GREY_4X4 | TWO_PLANES | FOUR_PARTS, GREY_4X4 | TWO_PLANES | THREE_PARTS),
    "an HDR end point": (4, GREY_4X4 | 2 << 13, GREY_4X4 | 1 << 13),
    "an HDR partition": (4, GREY_4X4 | 1 << 11 | 1 << 23 | 2 << 27, GREY_4X4 | 1 << 11 | 1 << 23 | 1 << 27),
    "24 colours": (4, GREY_4X4 | THREE_PARTS | 12 << 25, GREY_4X4 | THREE_PARTS | 8 << 25),
    "no room for 18 colours": (4, GREY_4X4 | 1 << 9 | THREE_PARTS | 8 << 25, GREY_4X4 | THREE_PARTS | 8 << 25),
    "one colour in HDR": (4, number(one_colour(1, flags=0b111)), FULL),
    "one colour, a reserved bit not set": (4, number(one_colour(1, flags=0b010)), FULL),
    "one colour, equal corners": (4, number(one_colour(1, corners=0)), FULL),
    "one colour, a corner in disorder": (
        4,
        number(one_colour(1, corners=5 | 9 << 13 | 7 << 26 | 6 << 39)),
        number(one_colour(1, corners=5 | 9 << 13 | 6 << 26 | 7 << 39)),
    ),
}


@pytest.mark.parametrize(("side", "illegal", "legal"), ILLEGAL.values(), ids=ILLEGAL)
def test_illegal_blocks_are_refused(side: int, illegal: int, legal: int) -> None:
    codec, spec = Astc(side, side), spec_of(2 * side, 3 * side)
    blocks = np.tile(one_colour(7), (2, 3))
    parts = {"blocks": blocks, "pair": UNIT}
    blocks[1, 32:] = block(legal)
    assert codec.check_values(spec, parts) is None
    blocks[1, 32:] = block(illegal)
    with pytest.raises(MalformedError, match="block 2 of row 1 ") as caught:
        codec.decode(spec, parts)
    assert caught.value.code == "E_ASTC_BLOCK"
    assert "block 2 of row 1 " in (codec.check_values(spec, parts) or "")


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ((0, np.nan, 0.0), "NaN or infinite"),
        ((0, 1.0, -np.inf), "NaN or infinite"),
        ((0, 3e38, 3e38), "NaN or infinite"),
        ((0, -1.0, 0.0), "negative scale"),
        ((9, 1.0, 0.0), "tensor 0x9, not to 0x0"),
    ],
)
def test_a_pair_that_is_wrong(pair: tuple[int, float, float], complaint: str) -> None:
    stored = np.concatenate([np.array(pair[:1], "<u8").view("<u4"), np.array(pair[1:], "<f4").view("<u4")])
    assert complaint in (Astc().check_values(spec_of(4, 4), {"blocks": one_colour(1)[None], "pair": stored}) or "")


def test_the_pair_of_another_tensor_is_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        Astc(id=2**63 - 1).decode(spec_of(4, 4), {"blocks": one_colour(1)[None], "pair": UNIT})
    assert caught.value.code == "E_PART_VALUES"


@pytest.mark.parametrize("params", [(4, 5), (12, 8), (7, 7), (4.0, 4), (True, 4), (4, 4, -1), (4, 4, 2**63), (4, 4, "1")])
def test_parameters_that_are_none(params: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Astc(*params)


def test_runs_are_the_values_in_order() -> None:
    codec, spec = Astc(12, 10), spec_of(2, 203, 500)
    blocks = np.stack([one_colour(red) for red in range(41 * 42)]).reshape(41, -1)
    parts = {"blocks": blocks, "pair": UNIT}
    runs = list(codec.decoded_runs(spec, parts))
    assert len(runs) > 2
    assert np.array_equal(np.concatenate(runs), codec.decode(spec, parts).reshape(-1))


def test_without_the_package_it_still_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "astc_encoder", None)
    with pytest.raises(UnsupportedError) as caught:
        Astc().encode(spec_of(4, 4), np.eye(4))
    assert caught.value.code == "E_EXTRA"
    assert "flyweight[astc]" in (caught.value.hint or "")
    assert (texels(Astc(), one_colour(5)[None], 4, 4) == 5).all()
    assert Astc().encode(spec_of(0, 4), np.empty((0, 4)))["blocks"].size == 0


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def signal_to_noise(values: np.ndarray, decoded: np.ndarray) -> float:
    return float(10 * np.log10((values**2).mean() / ((values - decoded) ** 2).mean()))


def test_what_is_encoded_comes_back_as_well_as_the_page_says() -> None:
    values = normal(96, 128)
    for (width, height), least in {(4, 4): 29, (5, 5): 19, (6, 6): 12, (8, 8): 5}.items():
        codec, spec = Astc(width, height, id=77), spec_of(*values.shape)
        parts = codec.encode(spec, values)
        assert codec.check_values(spec, parts) is None
        assert parts["pair"].view("<u8")[0] == 77
        assert parts["pair"].view("<f4")[2:].tolist() == [values.max() - values.min(), values.min()]
        assert signal_to_noise(values, codec.decode(spec, parts)) > least


def test_encoding_again_stays_near() -> None:
    values, spec, codec = normal(64, 64), spec_of(64, 64), Astc(5, 5)
    decoded = values
    for _ in range(4):
        decoded = codec.decode(spec, codec.encode(spec, decoded))
    assert signal_to_noise(values, decoded) > 15


def test_strips_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    values, spec, codec = normal(50, 37), spec_of(50, 37), Astc(8, 5)
    whole = codec.encode(spec, values)["blocks"]
    monkeypatch.setattr(astc, "_STRIP", 1)
    assert np.array_equal(codec.encode(spec, values)["blocks"], whole)


def test_weights_further_apart_than_f32_reaches_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        Astc().encode(spec_of(1, 2), np.array([[-3e38, 3e38]], np.float32))
    assert caught.value.code == "E_RANGE"
