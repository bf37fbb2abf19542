"""The block codecs of ggml: hand-made blocks, refusals, and grids that move between types without rounding."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs import ggml
from flyweight.codecs.codec import Grid
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec

CODECS = {kind.name: kind() for kind in ggml.CODECS}
ENCODERS = [name for name, codec in CODECS.items() if codec.encodes and not isinstance(codec, ggml.Searched)]
GRIDS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]


def f16(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


# One block of each type written out by hand, and the values it stands for. -----------------------

NIBBLES = bytes(i | (15 - i) << 4 for i in range(16))  # codes 0..15, then 15..0
UP_DOWN = [*range(16), *range(15, -1, -1)]
IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]

BY_HAND: dict[str, tuple[bytes, list[float]]] = {
    "q4_0": (f16(0.5) + NIBBLES, [0.5 * (q - 8) for q in UP_DOWN]),
    "q4_1": (f16(0.5, -3) + NIBBLES, [0.5 * q - 3 for q in UP_DOWN]),
    # the fifth bit is set for the odd elements
    "q5_0": (f16(2) + b"\xaa" * 4 + NIBBLES, [2.0 * (q + 16 * (i % 2) - 16) for i, q in enumerate(UP_DOWN)]),
    "q5_1": (f16(2, 1) + b"\xaa" * 4 + NIBBLES, [2.0 * (q + 16 * (i % 2)) + 1 for i, q in enumerate(UP_DOWN)]),
    "q8_0": (f16(0.25) + struct.pack("<32b", *range(-16, 16)), [0.25 * q for q in range(-16, 16)]),
    "q8_1": (f16(0.25, -4) + struct.pack("<32b", *range(-16, 16)), [0.25 * q for q in range(-16, 16)]),
    "iq4_nl": (f16(0.5) + NIBBLES, [0.5 * IQ4[q] for q in UP_DOWN]),
    "mxfp4": (bytes([128]) + NIBBLES, [2.0 * FP4[q] for q in UP_DOWN]),
    # every pair is 0b11 in plane 0 only; sub-block g has scale g and minimum 1
    "q2_k": (
        bytes(g | 0x10 for g in range(16)) + b"\x03" * 64 + f16(1, 2),
        [(3 if g % 8 < 2 else 0) * g - 2.0 for g in range(16) for _ in range(16)],
    ),
    # third bit set for plane 0 only, low pairs zero: codes 0 (where set) or -4; all scales 33 - 32
    "q3_k": (
        b"\x01" * 32 + b"\x00" * 64 + b"\x11" * 8 + b"\xaa" * 4 + f16(1),
        [0.0 if g < 2 else -4.0 for g in range(16) for _ in range(16)],
    ),
    # scales 1..8 and minimums 8..1, all below 16: in the low bits of bytes 0-7 and the nibbles of 8-11
    "q4_k": (
        f16(1, 2) + bytes([1, 2, 3, 4, 8, 7, 6, 5, 0x45, 0x36, 0x27, 0x18]) + b"\x51" * 128,
        [(g + 1.0) * (1, 5)[g % 2] - 2 * (8 - g) for g in range(8) for _ in range(32)],
    ),
    # the fifth bit is set in plane 7 only
    "q5_k": (
        f16(1, 2) + bytes([1, 2, 3, 4, 8, 7, 6, 5, 0x45, 0x36, 0x27, 0x18]) + b"\x80" * 32 + b"\x51" * 128,
        [(g + 1.0) * ((1, 5)[g % 2] + 16 * (g == 7)) - 2 * (8 - g) for g in range(8) for _ in range(32)],
    ),
    # low nibbles 1, high nibbles 2; upper pairs 0, 1, 2, 3 by plane; scales -8..7
    "q6_k": (
        b"\x21" * 128 + b"\xe4" * 64 + struct.pack("<16b", *range(-8, 8)) + f16(0.5),
        [0.5 * (g - 8) * ((1, 2)[g % 8 // 4] + 16 * (g % 8 // 2) - 32) for g in range(16) for _ in range(16)],
    ),
    "q8_k": (struct.pack("<f", 0.125) + bytes(range(256)) + bytes(32), [0.125 * (q - 256 * (q > 127)) for q in range(256)]),
    # steps 33 - 32 = 1 for even groups, 18 - 32 = -14 for odd ones
    "iq4_xs": (
        f16(1) + b"\x66\x66" + b"\x21" * 4 + NIBBLES * 8,
        [(1, -14)[g % 2] * float(IQ4[q]) for g in range(8) for q in UP_DOWN],
    ),
}


@pytest.mark.parametrize("name", CODECS)
def test_a_block_by_hand(name: str) -> None:
    block, values = BY_HAND[name]
    codec = CODECS[name]
    assert (len(block), len(values)) == (codec.block_bytes, codec.block_size)
    parts = {"blocks": np.frombuffer(block, np.uint8)}
    assert codec.decode(TensorSpec((codec.block_size,), DType.F32), parts).tolist() == values


@pytest.mark.parametrize("name", CODECS)
def test_layout(name: str) -> None:
    codec = CODECS[name]
    row = 3 * codec.block_size
    assert codec.layout(TensorSpec((2, 5, row), DType.F32)) == {"blocks": TensorSpec((2, 5, 3 * codec.block_bytes), DType.U8)}
    for shape in ((), (4, row - 1), (row, 16)):
        with pytest.raises(UnsupportedError, match=name) as refused:
            codec.layout(TensorSpec(shape, DType.F32))
        assert refused.value.code == "E_BLOCK_ROWS"
    with pytest.raises(UnsupportedError) as refused:
        codec.layout(TensorSpec((row,), DType.F16))
    assert refused.value.code == "E_BLOCK_DTYPE"
    with pytest.raises(MalformedError):
        codec.check_layout(TensorSpec((row,), DType.F32), {"blocks": TensorSpec((3 * codec.block_bytes - 1,), DType.U8)})


@pytest.mark.parametrize("name", CODECS)
def test_decode_into_given_array(name: str) -> None:
    codec = CODECS[name]
    block, values = BY_HAND[name]
    spec = TensorSpec((2, codec.block_size), DType.F32)
    out = np.full(spec.shape, 9.0, np.float32)
    parts = {"blocks": np.frombuffer(block * 2, np.uint8).reshape(2, -1)}
    assert codec.decode(spec, parts, out) is out
    assert out.tolist() == [values, values]


@pytest.mark.parametrize("name", CODECS)
def test_a_scale_that_is_not_finite_is_reported(name: str) -> None:
    codec = CODECS[name]
    spec = TensorSpec((3 * codec.block_size,), DType.F32)
    sound = np.frombuffer(BY_HAND[name][0] * 3, np.uint8)
    assert codec.check_values(spec, {"blocks": sound}) is None
    bad_fields = [(at, np.array([value], kind).tobytes()) for at, kind in codec.scales for value in (np.nan, np.inf, -np.inf)]
    for at, field in bad_fields or [(0, b"\xff")]:
        bad = sound.copy()
        start = codec.block_bytes + at
        bad[start : start + len(field)] = list(field)
        complaint = codec.check_values(spec, {"blocks": bad})
        assert complaint is not None
        assert "block 1" in complaint


# Encoding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENCODERS)
def test_error_of_nearest_rounding(name: str) -> None:
    """Within half a step of the block, plus what narrowing the scale to f16 costs."""
    values = np.random.default_rng(7).standard_normal((64, 256)).astype(np.float32)
    spec = TensorSpec(values.shape, DType.F32)
    error = np.abs(CODECS[name].decode(spec, CODECS[name].encode(spec, values)) - values).reshape(-1, 32).max(axis=1)
    blocks = values.reshape(-1, 32)
    peak, spread = np.abs(blocks).max(axis=1), blocks.max(axis=1) - blocks.min(axis=1)
    # a centred grid has one level fewer above zero, so a value there may be a whole step off; e2m1 saturates at 6 of 8
    bound = {
        "q4_0": peak / 8,
        "q4_1": spread / 30,
        "q5_0": peak / 16,
        "q5_1": spread / 62,
        "q8_0": peak / 254,
        "q8_1": peak / 254,
        "mxfp4": peak / 4,
    }[name]
    assert (error <= bound + peak * 2.0**-10).all()


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_do_not_fit_are_refused(name: str, bad: float) -> None:
    values = np.ones((4, 32), np.float64)
    values[2, 17] = bad
    with pytest.raises(UnsupportedError, match="block 2") as refused:
        CODECS[name].encode(TensorSpec(values.shape, DType.F32), values)
    assert refused.value.code == "E_BLOCK_RANGE"


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "mxfp4"])
def test_a_scale_beyond_f16_is_refused(name: str) -> None:
    values = np.linspace(-1e8, 1e8, 32, dtype=np.float32)
    with pytest.raises(UnsupportedError, match="NaN or infinite"):
        CODECS[name].encode(TensorSpec((32,), DType.F32), values)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("tiny", [0.0, -0.0, 1e-45, -1e-45, 1e-40, 3e-39, 1e-30])
def test_values_too_small_decode_to_next_to_nothing(name: str, tiny: float) -> None:
    spec = TensorSpec((32,), DType.F32)
    values = np.full(32, tiny, np.float32)
    values[::2] = 0
    found = CODECS[name].decode(spec, CODECS[name].encode(spec, values))
    assert (np.abs(found) <= 2 * abs(tiny)).all()


def test_a_type_without_an_encoder_says_so() -> None:
    """Every type that is decoded is encoded as well; another may come that is not."""
    decoded_only = type("DecodedOnly", (type(CODECS["q8_0"]),), {"encodes": False})()
    with pytest.raises(UnsupportedError) as refused:
        decoded_only.encode(TensorSpec((256,), DType.F32), np.zeros(256, np.float32))
    assert refused.value.code == "E_NO_ENCODER"


def test_q8_1_stores_the_sum_of_its_values() -> None:
    """s = f16(f16(Σ q) · d): 32 · 127 = 4064 is beyond the whole numbers that f16 has one by one."""
    values = np.full((2, 32), 1, np.float32)
    values[1, 1:] = 0.9961
    blocks = CODECS["q8_1"].encode(TensorSpec((2, 32), DType.F32), values)["blocks"]
    d, s = blocks[:, :4].view("<f2").astype(np.float64).T
    codes = blocks[:, 4:].view(np.int8)
    assert codes.sum(axis=1, dtype=int).tolist() == [4064, 127 + 31 * 127]
    assert s.tolist() == (np.float16(4064).astype(np.float64) * d).astype(np.float16).astype(np.float64).tolist()


# Grids ------------------------------------------------------------------------------------------


def random_parts(name: str, spec: TensorSpec, seed: int) -> dict[str, np.ndarray]:
    """Any codes; scales and minimums any finite f16."""
    codec = CODECS[name]
    rng = np.random.default_rng(seed)
    count = spec.size // 32
    blocks = rng.integers(0, 256, (count, codec.block_bytes), dtype=np.uint8)
    for at, _ in codec.scales:
        halves = rng.integers(0, 0x7C00, (count, 1)) | rng.integers(0, 2, (count, 1)) << 15
        blocks[:, at : at + 2] = halves.astype("<u2").view(np.uint8)
    return {"blocks": blocks.reshape(*spec.shape[:-1], -1)}


def grid_values(grid: Grid) -> np.ndarray:
    return grid.codes * np.repeat(grid.scale, grid.group, axis=1) + np.repeat(grid.bias, grid.group, axis=1)


@pytest.mark.parametrize("name", GRIDS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_grid_is_the_tensor_and_comes_back(name: str, seed: int) -> None:
    codec, spec = CODECS[name], TensorSpec((2, 3, 96), DType.F32)
    parts = random_parts(name, spec, seed)
    grid = codec.grid(spec, parts)
    assert grid.codes.max() < 2**grid.bits
    assert np.array_equal(grid_values(grid).reshape(spec.shape), codec.decode(spec, parts))
    again = codec.from_grid(spec, grid)
    assert np.array_equal(codec.decode(spec, again), codec.decode(spec, parts))


@pytest.mark.parametrize(
    ("source", "target"), [("q4_0", "q5_0"), ("q4_0", "q8_0"), ("q5_0", "q8_0"), ("q4_1", "q5_1"), ("q5_0", "q5_0")]
)
def test_a_grid_moves_to_a_wider_type(source: str, target: str) -> None:
    spec = TensorSpec((4, 128), DType.F32)
    parts = random_parts(source, spec, 3)
    moved = CODECS[target].from_grid(spec, CODECS[source].grid(spec, parts))
    assert np.array_equal(CODECS[target].decode(spec, moved), CODECS[source].decode(spec, parts))


def grid_of(scale: float, bias: float, bits: int = 4, group: int = 32, code: int = 0) -> Grid:
    shape = (2, 128 // group)
    return Grid(
        bits, group, np.full((2, 128), code, np.uint8), np.full(shape, scale, np.float32), np.full(shape, bias, np.float32)
    )


@pytest.mark.parametrize(
    ("target", "grid"),
    [
        ("q4_0", grid_of(0.1, -0.8)),  # scale not exact in f16
        ("q4_1", grid_of(0.1, 0.5)),
        ("q4_1", grid_of(0.5, 0.1)),  # minimum not exact in f16
        ("q4_1", grid_of(1e6, 0.0)),  # beyond f16
        ("q4_1", grid_of(float("nan"), 0.0)),
        ("q4_0", grid_of(float("inf"), float("-inf"))),
        ("q4_0", grid_of(0.5, -3.75)),  # zero between two codes
        ("q4_0", grid_of(0.5, -3.0, code=15)),  # shifted out of range
        ("q4_0", grid_of(0.5, -5.0)),
        ("q4_0", grid_of(0.0, 1.0)),  # constant, not zero
        ("q4_0", grid_of(2.0**-24, 60000.0)),  # as many steps as no code has
        ("q4_0", grid_of(0.5, -8.0, bits=5)),  # too many bits
        ("q4_0", grid_of(0.5, -4.0, group=16)),  # two scales in a block
    ],
)
def test_a_grid_that_does_not_fit_is_refused(target: str, grid: Grid) -> None:
    with pytest.raises(UnsupportedError) as refused:
        CODECS[target].from_grid(TensorSpec((2, 128), DType.F32), grid)
    assert refused.value.code == "E_GRID"


@pytest.mark.parametrize("group", [32, 64, 128])
def test_a_wider_group_repeats_its_scale(group: int) -> None:
    spec = TensorSpec((2, 128), DType.F32)
    grid = grid_of(0.5, -4.0, group=group, code=11)
    assert (CODECS["q4_0"].decode(spec, CODECS["q4_0"].from_grid(spec, grid)) == 1.5).all()


def test_a_constant_zero_group_fits_a_centred_type() -> None:
    spec = TensorSpec((2, 128), DType.F32)
    assert (CODECS["q4_0"].decode(spec, CODECS["q4_0"].from_grid(spec, grid_of(0.0, 0.0, code=9))) == 0).all()


@pytest.mark.parametrize("name", [name for name in CODECS if name not in GRIDS])
def test_no_grid(name: str) -> None:
    codec, spec = CODECS[name], TensorSpec((256,), DType.F32)
    assert codec.grid_spec is None
    with pytest.raises(UnsupportedError):
        codec.grid(spec, {"blocks": np.zeros(1, np.uint8)})
