"""Blockwise codes: the bytes, values by the formula, blocks of any shape, rows, the nearest codes, and what is refused."""

from __future__ import annotations

import tracemalloc
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from flyweight.codecs import codec_for, take_rows
from flyweight.codecs.affine import Affine
from flyweight.codecs.blockwise import Blockwise
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec, has_rows, rows_encode_alone
from flyweight.quantizers import QUANTIZERS
from support.importance import weighing

TYPES = {"f16": np.float16, "f32": np.float32}
BLOCKS = [
    ((16, 64), ""),
    ((16, 64), "1"),
    ((16, 64), "1x32"),
    ((16, 64), "8x16"),
    ((16, 64), "0x1"),
    ((6, 5, 3, 3), "1"),
    ((6, 5, 3, 3), "0x1"),
    ((6, 4, 3, 3), "2x2x1x3"),
    ((6, 4, 1, 1), "3"),
    ((7, 9), "1x3"),
    ((3, 5), "1"),
    ((35,), "1x7"),
    ((35,), ""),
]


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def integers(part: np.ndarray, data: str, count: int) -> list[int]:
    """From the bytes, one after the other."""
    bits, stream = int(data[1:]), int.from_bytes(part.tobytes(), "little")
    codes = [stream >> i * bits & (1 << bits) - 1 for i in range(count)]
    return [code - (1 << bits) if data[0] == "i" and code >> bits - 1 else code for code in codes]


def decoded(codec: Blockwise, spec: TensorSpec, parts: dict[str, np.ndarray]) -> np.ndarray:
    """By the formula, one weight after the other; NumPy's scalars round as the types that are named do."""
    scale_type = TYPES[codec.scale]
    scales = parts["scale"].reshape(-1)
    if codec.data in TYPES:
        codes = parts["codes"].reshape(-1).astype(scale_type)
    else:
        codes = integers(parts["codes"], codec.data, spec.size)
    if codec.offset == "data":
        offsets = integers(parts["offset"], codec.data, scales.size)
    else:
        offsets = parts["offset"].reshape(-1) if codec.offset else [0] * scales.size
    counts = parts["scale"].shape
    out = np.empty(spec.shape, np.float32)
    for code, place in zip(codes, product(*map(range, spec.shape)), strict=True):
        at = [p * count // axis for p, count, axis in zip(place, counts, spec.shape, strict=True)]
        block = int(np.ravel_multi_index(at, counts))
        difference = scale_type(code) - (offsets[block] if codec.offset in TYPES else scale_type(offsets[block]))
        out[place] = scale_type(np.float32(difference) * np.float32(scales[block]))
    return out


def random_parts(codec: Blockwise, spec: TensorSpec, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    parts = {}
    for name, part in codec.layout(spec).items():
        if part.dtype.is_float:
            parts[name] = rng.standard_normal(part.shape).astype(part.dtype.numpy)
        else:
            parts[name] = np.frombuffer(rng.bytes(part.nbytes), part.dtype.storage).reshape(part.shape)
    return parts


@pytest.mark.parametrize(("shape", "block"), BLOCKS)
@pytest.mark.parametrize("data", ["i4", "u4", "i8", "u8", "f16", "f32"])
@pytest.mark.parametrize("offset", ["", "data", "f16", "f32"])
@pytest.mark.parametrize("scale", TYPES)
def test_values_are_those_of_the_formula(shape: tuple[int, ...], block: str, data: str, offset: str, scale: str) -> None:
    if offset == "data" and data in TYPES:
        with pytest.raises(ValueError, match="must be f16 or f32"):
            Blockwise(data, block, scale, offset)
        return
    codec, spec = Blockwise(data, block, scale, offset), f32(*shape)
    parts = random_parts(codec, spec, prod(shape))
    found = codec.decode(spec, parts)
    assert np.array_equal(found.view(np.uint32), decoded(codec, spec, parts).view(np.uint32))


def test_slabs_may_end_anywhere_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of an odd number of codes, which start within a byte, and blocks longer than a slab."""
    monkeypatch.setattr("flyweight.codecs.blockwise._SLAB", 16)
    for (shape, block), data, offset in product(BLOCKS, ("i4", "u8"), ("", "data", "f16")):
        codec, spec = Blockwise(data, block, "f16", offset), f32(*shape)
        parts = random_parts(codec, spec, 3)
        runs = [*codec.decoded_runs(spec, parts)]
        assert max(run.size for run in runs) == min(spec.size, 16)
        assert np.array_equal(np.concatenate(runs), decoded(codec, spec, parts).reshape(-1))
        assert np.array_equal(codec.decode(spec, parts), decoded(codec, spec, parts))


def test_the_bytes() -> None:
    """A row may end within a byte; the next goes on there, and the last bits are zero."""
    values = np.float32([[-7, 7, -1], [0.5, 3.5, -3]])
    parts = Blockwise("i4", "1").encode(f32(2, 3), values)
    assert parts["codes"].tobytes() == bytes([0x79, 0x1F, 0xA7])
    assert parts["scale"].tolist() == [[1.0], [0.5]]
    parts = Blockwise("u4", "1", offset="data").encode(f32(2, 3), np.float32([[-7, 8, -1], [0, 15, 3]]))
    assert parts["codes"].tobytes() == bytes([0xF0, 0x06, 0x3F])
    assert parts["offset"].tobytes() == bytes([0x07])  # 7 and 0
    assert parts["scale"].tolist() == [[1.0], [1.0]]


def test_parts_keep_the_rows_of_a_matrix_alone() -> None:
    """An axis before the last means something to a block: rows of a tensor of higher rank cannot be taken for a matrix."""
    assert Blockwise("i4", "1x32").layout(f32(4, 64)) == {
        "codes": TensorSpec((4, 32), DType.U8),
        "scale": TensorSpec((4, 2), DType.F16),
    }
    assert rows_encode_alone(f32(4, 64), Blockwise("i4", "1x32").layout(f32(4, 64)))
    assert not has_rows(f32(4, 64), Blockwise("i4", "4x32").layout(f32(4, 64)))
    assert not has_rows(f32(4, 63), Blockwise("i4", "1").layout(f32(4, 63)))
    assert not has_rows(f32(2, 4, 64), Blockwise("i8", "1x1").layout(f32(2, 4, 64)))
    assert Blockwise("i4", "1", offset="data").layout(f32(3, 5))["offset"] == TensorSpec((2,), DType.U8)


def test_a_vector_is_a_row() -> None:
    codec, spec = Blockwise("i8", "1x16"), f32(64)
    values = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    parts = codec.encode(spec, values)
    row = take_rows(EncodedTensor(spec, codec.spec, parts), slice(0, 1))
    assert np.array_equal(codec.decode(row.spec, row.parts)[0], codec.decode(spec, parts))
    assert np.array_equal(codec.encode(f32(1, 64), values[None])["codes"][0], parts["codes"])


@pytest.mark.parametrize(("shape", "block"), BLOCKS)
@pytest.mark.parametrize("data", ["i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("offset", ["", "data", "f16", "f32"])
@pytest.mark.parametrize("scale", TYPES)
def test_no_other_code_is_nearer(shape: tuple[int, ...], block: str, data: str, offset: str, scale: str) -> None:
    """Up to rounding: of both values twice to f16, 2^-11 of the magnitude each, and of quotients to f32, 2^-22 of 510 steps."""
    codec, spec = Blockwise(data, block, scale, offset), f32(*shape)
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    if data[0] == "u" and not offset:
        values = np.abs(values)
    parts = dict(codec.encode(spec, values))
    codes = np.array(integers(parts["codes"], data, spec.size)).reshape(shape)
    error = np.abs(codec.decode(spec, parts) - values)
    bits = int(data[1:])
    low = -(1 << bits - 1) if data[0] == "i" else 0
    step = np.abs(parts["scale"].astype(np.float32)).max()
    slack = 2.0**-9 * np.abs(values) * (scale == "f16") + 2.0**-13 * step
    for by in (-1, 1):
        other = codes + by
        held = np.clip(other, low, low + (1 << bits) - 1)
        moved = codec.store(spec, (held & 0xFF).astype(np.uint8).reshape(1, -1), parts["scale"], offset_numbers(codec, parts))
        nearer = error - np.abs(codec.decode(spec, moved) - values)
        assert (nearer <= slack).all()


def offset_numbers(codec: Blockwise, parts: dict[str, np.ndarray]) -> np.ndarray:
    if codec.offset != "data":
        return parts.get("offset", np.zeros(1))
    return np.array(integers(parts["offset"], codec.data, parts["scale"].size)).reshape(1, -1)


@pytest.mark.parametrize("offset", ["data", "f16", "f32"])
@pytest.mark.parametrize("data", ["i4", "u8"])
def test_constant_blocks_keep_their_value(data: str, offset: str) -> None:
    """To the rounding of the scale and of the value, 2^-11 each."""
    values = np.repeat(np.float32([0, 3, -0.7, 1e-3]), 8).reshape(4, 8)
    codec = Blockwise(data, "1", "f16", offset)
    assert np.allclose(codec.decode(f32(4, 8), codec.encode(f32(4, 8), values)), values, rtol=2.0**-10, atol=0)


def test_zero_is_exact_where_the_offset_is_a_code() -> None:
    values = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32) + 3
    values[:, ::5] = 0
    codec = Blockwise("u4", "1", "f16", "data")
    assert (codec.decode(f32(8, 64), codec.encode(f32(8, 64), values))[:, ::5] == 0).all()


@pytest.mark.parametrize(
    "params",
    [
        {"data": "u3"},
        {"data": "bf16"},
        {"scale": "bf16"},
        {"offset": "i8"},
        {"block": 1},
        {"block": "1x"},
        {"block": "01"},
        {"block": "-1"},
        {"block": "1X2"},
        {"block": "x".join("1" * 9)},
        {"block": "99999999999"},
    ],
)
def test_parameters_that_mean_nothing_are_malformed(params: dict[str, Any]) -> None:
    with pytest.raises(MalformedError) as caught:
        codec_for(CodecSpec("blockwise", params))
    assert caught.value.code == "E_CODEC_PARAMS"


@pytest.mark.parametrize(("shape", "block"), [((3, 64), "2"), ((4, 60), "1x32"), ((4, 4), "1x1x1"), ((32,), "32"), ((), "")])
def test_tensors_of_no_whole_blocks_are_refused(shape: tuple[int, ...], block: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Blockwise(block=block).layout(f32(*shape))
    assert caught.value.code == "E_SPEC"


def test_weights_beyond_the_scale_are_refused() -> None:
    values = np.full((2, 8), 1e9, np.float32)
    for data, offset in product(("i8", "f16", "f32"), ("", "f16")):
        with pytest.raises(UnsupportedError) as caught:
            Blockwise(data, "1", "f16", offset).encode(f32(2, 8), values)
        assert caught.value.code == "E_RANGE"
        wide = Blockwise(data, "1", "f32", offset)
        assert np.allclose(wide.decode(f32(2, 8), wide.encode(f32(2, 8), values)), values, rtol=2.0**-6)


def test_unsigned_codes_without_an_offset_hold_one_sign() -> None:
    values = np.float32([[1, 2, 15, 0], [-1, -2, -15, 0]])
    codec = Blockwise("u4", "1")
    assert np.array_equal(codec.decode(f32(2, 4), codec.encode(f32(2, 4), values)), values)
    with pytest.raises(UnsupportedError) as caught:
        codec.encode(f32(2, 4), values.T.reshape(2, 4))
    assert caught.value.code == "E_RANGE"


def test_values_that_mean_nothing_are_complained_about() -> None:
    codec, spec = Blockwise("i4", "1", offset="data"), f32(3, 5)
    sound = dict(codec.encode(spec, np.random.default_rng(1).standard_normal((3, 5))))
    assert codec.check_values(spec, sound) is None
    for part in ("codes", "offset"):
        changed = sound[part].copy()
        changed[-1] |= 0x80
        assert codec.check_values(spec, sound | {part: changed}) == (
            f"the bits after the last number of part '{part}' are not zero"
        )
    for scale, complaint in (
        (np.nan, "part 'scale' has NaN or infinite values"),
        (60000, "a code times its scale is infinite"),
    ):
        wrong = sound["scale"].copy()
        wrong[0] = scale
        assert codec.check_values(spec, sound | {"scale": wrong}) == complaint
    small = sound | {"codes": np.zeros_like(sound["codes"]), "offset": np.zeros_like(sound["offset"]), "scale": wrong}
    assert codec.check_values(spec, small) is None  # no code reaches that far


@pytest.mark.parametrize("scale", TYPES)
@pytest.mark.parametrize(
    ("shape", "block"),
    [((16, 64), "1x32"), ((16, 64), "1"), ((15, 63), "1"), ((4, 6, 3, 3), "1"), ((64,), "1x16"), ((8, 8), "")],
)
def test_the_search_of_affine_grids_fills_it_too(shape: tuple[int, ...], block: str, scale: str) -> None:
    """The same codes and scales as in the affine codec; less error than its own encoder's, importance or not."""
    values = np.random.default_rng(4).standard_t(4, shape).astype(np.float32)
    codec, spec, by = Blockwise("i4", block, scale), f32(*shape), np.where(np.arange(shape[-1]) % 3 == 0, 1, 1e-4)
    parts, own = QUANTIZERS["clip"](values, codec, spec), codec.encode(spec, values)

    def error(parts: Any, weights: Any = 1) -> float:
        return float((np.square(codec.decode(spec, parts) - values) * weights).sum())

    assert error(parts) < 0.9 * error(own)
    assert error(QUANTIZERS["clip"](values, codec, spec, weighing(by)), by) < error(parts, by)
    rows = values.reshape(-1, {"1x32": 64, "1x16": 16, "": 64}.get(block, int(np.prod(shape[1:]))))
    affine = Affine(4, {"1x32": 32, "1x16": 16}.get(block, 0), "symmetric", scale)
    same = QUANTIZERS["clip"](rows, affine, f32(*rows.shape))
    assert parts["scale"].tobytes() == same["scale"].tobytes()


@pytest.mark.parametrize("offset", ["data", "f16", "f32"])
@pytest.mark.parametrize("data", ["i4", "u4", "u8"])
@pytest.mark.parametrize(("shape", "block"), [((16, 64), "1x32"), ((15, 63), "1"), ((9, 6, 3, 3), "1"), ((8, 8), "")])
def test_the_search_finds_offsets_too(shape: tuple[int, ...], block: str, data: str, offset: str) -> None:
    """No block has more error than by its own encoder, whatever the weights; on one side of zero, and of one value, as well."""
    rng = np.random.default_rng(4)
    values = rng.standard_t(4, shape).astype(np.float32)
    values[0] = np.abs(values[0]) + 3
    values[-1] = 0.25
    codec, spec = Blockwise(data, block, "f32", offset), f32(*shape)
    for by in (np.ones(shape[-1]), np.where(np.arange(shape[-1]) % 3 == 0, 1, 1e-4)):
        searched, own = QUANTIZERS["clip"](values, codec, spec, weighing(by)), codec.encode(spec, values)
        assert codec.check_values(spec, searched) is None
        lost = [np.square(codec.decode(spec, parts).astype(np.float64) - values) * by for parts in (searched, own)]
        blocks = [part.reshape(-1, 32 if block == "1x32" else int(np.prod(shape[bool(block) :]))).sum(axis=1) for part in lost]
        assert (blocks[0] <= blocks[1] * (1 + 1e-12)).all()
        if block:  # those of both signs
            assert blocks[0][2:-2].sum() < (1 if data == "u8" else 0.98) * blocks[1][2:-2].sum()


def test_the_search_does_not_fill_what_is_no_affine_grid() -> None:
    for codec in (Blockwise("i4", "2x8"), Blockwise("i4", "0x1"), Blockwise("u4", "1"), Blockwise("f16", "1")):
        with pytest.raises(UnsupportedError) as caught:
            QUANTIZERS["clip"](np.ones((4, 16)), codec, f32(4, 16))
        assert caught.value.code == "E_QUANTIZER"


def test_values_have_the_type_of_the_scale() -> None:
    assert Blockwise().value_dtype is DType.F16
    assert Blockwise(scale="f32").value_dtype is None


@pytest.mark.parametrize("block", ["", "1", "0x1", "64x16"])
def test_values_are_handed_out_in_runs_of_bounded_memory(block: str) -> None:
    """The scales of 1 M weights in f32, and some slabs: far less than the 4 MB of the values."""
    codec, spec = Blockwise("i4", block, offset="data"), f32(1024, 1024, 1, 1)
    parts = random_parts(codec, spec, 1)
    tracemalloc.start()
    count = sum(run.size for run in codec.decoded_runs(spec, parts))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == spec.size
    assert peak < 2 << 20
