"""The palette codec: its formula written out element by element, its encoder, and what it refuses."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from flyweight.codecs import packing
from flyweight.codecs.palette import Palette
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS

FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
FORMS = [
    *(Palette(bits) for bits in (1, 2, 3, 4, 6, 8)),
    *(Palette(3, group, axis, table=table) for group in (1, 2, 5) for axis in (0, 1, -1) for table in FLOATS),
    *(Palette(4, 0, 0, vector, axis) for vector in (2, 3, 4) for axis in (0, 1, -1)),
    *(Palette(6, 4, axis, 2, other) for axis in (0, 1, -1) for other in (0, 1, -1)),
    *(Palette(2, 2, 0, table=table, scale=scale) for table, scale in (("i8", "f16"), ("i8", "f32"), ("f16", "f16"))),
    *(Palette(4, 1, -1, table=kind, scale=kind) for kind in FLOATS),
    *(
        Palette(3, 2, 0, table=kind, scale="f16", offset=kind, scale_per=per)
        for kind in ("i8", "u8")
        for per in ("table", "tensor")
    ),
    Palette(4, 0, 0, 2, 0, table="i8", scale="f32", offset="i8"),
    Palette(4, 2, 1, table="f16", scale="f16", scale_per="tensor"),
    Palette(8, table="i8"),
]


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def noise(codec: Palette, spec: TensorSpec, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-100, 101, part.shape).astype(part.dtype.numpy)
        if part.dtype is DType.I8
        else rng.integers(0, 256, part.shape, dtype=np.uint8)
        if part.dtype is DType.U8
        else rng.standard_normal(part.shape).astype(part.dtype.numpy)
        for name, part in codec.layout(spec).items()
    }


def distances(codec: Palette, spec: TensorSpec, errors: np.ndarray) -> np.ndarray:
    """The squared error of each index."""
    frame = codec.frame(spec)
    points = np.concatenate([frame.points(errors, piece.positions) for piece in frame.pieces()])
    return (points.astype(np.float64) ** 2).sum(axis=1)


def by_hand(codec: Palette, spec: TensorSpec, parts: dict[str, np.ndarray]) -> np.ndarray:
    """The documented formula, one weight at a time."""
    rank = len(spec.shape)
    axis, vector_axis = codec.axis % rank, codec.vector_axis % rank
    indices = [-(-n // codec.vector) if at == vector_axis else n for at, n in enumerate(spec.shape)]
    stream = int.from_bytes(parts["indices"].tobytes(), "little")
    out = np.empty(spec.shape, np.float32)
    for place in product(*map(range, spec.shape)):
        number = 0
        for at, n in enumerate(indices):
            number = number * n + (place[at] // codec.vector if at == vector_axis else place[at])
        k = stream >> number * codec.bits & (2**codec.bits - 1)
        table = [0] * rank
        table[axis] = place[axis] // codec.group if codec.group else 0
        value = np.float32(parts["tables"][(*table, k, place[vector_axis] % codec.vector)])
        if codec.scale:
            own = (*(table if codec.scale_per == "table" else [0] * rank), 0, 0)
            shifted = value - np.float32(parts["offset"][own] if codec.offset else 0)
            value = np.float32((shifted * np.float32(parts["scale"][own])).astype(FLOATS[codec.scale]))
        out[place] = value
    return out


@pytest.mark.parametrize("codec", FORMS, ids=lambda codec: str(codec.spec))
@pytest.mark.parametrize("shape", [(8, 12), (5, 7), (4, 3, 6)], ids=str)
def test_values_follow_the_formula(codec: Palette, shape: tuple[int, ...]) -> None:
    spec = f32(*shape)
    parts = noise(codec, spec)
    assert np.array_equal(codec.decode(spec, parts), by_hand(codec, spec, parts))


def test_a_long_run_is_decoded_in_slabs() -> None:
    for codec in (Palette(3, 0), Palette(3, 7, 0), Palette(6, 0, 0, 2)):
        spec = f32(300, 500)
        parts = noise(codec, spec)
        codes = np.unpackbits(parts["indices"], bitorder="little")[: 300 * 500 // codec.vector * codec.bits]
        numbers = np.packbits(codes.reshape(-1, codec.bits), axis=1, bitorder="little").reshape(300, -1)
        tables = parts["tables"].reshape(-1, codec.entries, codec.vector).astype(np.float32)
        owner = np.arange(300)[:, None] // (codec.group or 300)
        assert np.array_equal(codec.decode(spec, parts), tables[owner, numbers].reshape(300, 500))


@pytest.mark.parametrize(
    "codec",
    [Palette(3, 7, 1), Palette(4, 16, 1, 2, 0), Palette(4, 0, 0, 5, 0), Palette(6, 6, 1, 3, 1), Palette(4, 0, 0, 2, 1)],
    ids=lambda codec: str(codec.spec),
)
def test_any_order_is_decoded_in_slabs(codec: Palette) -> None:
    """Groups and vectors along any axis, short ends included, beyond the indices that are decoded at a time."""
    spec = f32(601, 357)
    parts = noise(codec, spec)
    decoded = codec.decode(spec, parts)
    assert np.array_equal(np.concatenate([*codec.decoded_runs(spec, parts)]), decoded.reshape(-1))
    shape = codec.frame(spec).indices
    codes = packing.unpack("little", parts["indices"][None], codec.bits, int(np.prod(shape))).reshape(shape)
    place = np.indices(spec.shape)
    k = codes[tuple(place[axis] // (codec.vector if axis == codec.vector_axis else 1) for axis in (0, 1))]
    groups = tuple(place[axis] // codec.group if codec.group and axis == codec.axis else 0 * place[axis] for axis in (0, 1))
    v = place[codec.vector_axis] % codec.vector
    assert np.array_equal(decoded, parts["tables"][(*groups, k, v)].astype(np.float32))


def test_bytes_as_core_ml_has_them() -> None:
    """A 5 × 7 weight of one bit: one stream over the whole tensor, five bytes; 35 bits, the rest of the last byte unused."""
    codec, spec = Palette(1), f32(5, 7)
    layout = codec.layout(spec)
    assert layout["indices"] == TensorSpec((5,), DType.U8)
    assert layout["tables"] == TensorSpec((1, 1, 2, 1), DType.F16)
    assert Palette(4, 8, 0, 2, 0).layout(f32(32, 64))["tables"].shape == (4, 1, 16, 2)
    assert Palette(4, 1, 1, table="f16", scale="f16").layout(f32(32, 64))["scale"].shape == (1, 64, 1, 1)
    table = np.float16([-0.5, 0.25]).reshape(1, 1, 2, 1)
    decoded = codec.decode(spec, {"indices": np.uint8([0b11101111, 0b00101000, 0, 0, 0b11111000]), "tables": table})
    assert decoded[0].tolist() == [0.25] * 4 + [-0.5] + [0.25] * 2
    assert decoded[1].tolist() == [0.25] + [-0.5] * 3 + [0.25, -0.5, 0.25]
    assert (decoded[2:] == -0.5).all()


def test_a_product_is_rounded_once_to_the_type_of_the_scale() -> None:
    codec, spec = Palette(1, table="i8", scale="f16"), f32(2)
    parts = {"indices": np.uint8([0b10]), "tables": np.int8([-113, 87]).reshape(1, 2, 1), "scale": np.float16([[[0.003113]]])}
    scale = np.float64(parts["scale"][0, 0, 0])
    assert codec.decode(spec, parts).tolist() == [float(np.float16(-113 * scale)), float(np.float16(87 * scale))]


@pytest.mark.parametrize("codec", [codec for codec in FORMS if codec.vector != 3], ids=lambda codec: str(codec.spec))
def test_codes_are_the_nearest(codec: Palette) -> None:
    """Whatever the quantizer: of what its table decodes to, every weight takes the nearest."""
    spec = f32(8, 12)
    values = np.random.default_rng(1).standard_normal((8, 12)).astype(np.float32)
    for quantizer in ("nearest", "kmeans"):
        parts = dict(QUANTIZERS[quantizer](values, codec, spec))
        chosen = distances(codec, spec, codec.decode(spec, parts) - values)
        least = np.full(len(chosen), np.inf)
        count = codec.frame(spec).count
        for code in range(codec.entries):
            stream = np.tile(np.unpackbits(np.uint8([code]), count=codec.bits, bitorder="little"), count)
            other = codec.decode(spec, parts | {"indices": np.packbits(stream, bitorder="little")})
            least = np.minimum(least, distances(codec, spec, other - values))
        assert np.allclose(chosen, least, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("table", FLOATS)
def test_the_error_of_the_uniform_table(bits: int, table: str) -> None:
    """|w − ŵ| ≤ (hi − lo) / 2(2^bits − 1) + 3u·max|w|, the bound of docs/formats/palette.md."""
    values = np.random.default_rng(bits).standard_normal((6, 50)).astype(np.float32)
    codec, spec = Palette(bits, 2, table=table), f32(6, 50)
    error = np.abs(codec.decode(spec, codec.encode(spec, values)).astype(np.float64) - values).reshape(3, -1)
    groups = values.astype(np.float64).reshape(3, -1)
    step = (groups.max(axis=1) - groups.min(axis=1)) / (2**bits - 1)
    roundoff = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}[table]
    assert (error.max(axis=1) <= step / 2 + 3 * roundoff * np.abs(groups).max(axis=1)).all()


@pytest.mark.parametrize("quantizer", ["nearest", "kmeans"])
def test_extreme_and_empty_tensors(quantizer: str) -> None:
    fill = QUANTIZERS[quantizer]
    for shape in ((0, 5), (5, 0), (0,)):
        for codec in (Palette(4), Palette(4, 2), Palette(4, 0, 0, 2, 0)):
            spec = f32(*shape)
            assert codec.decode(spec, fill(np.zeros(shape), codec, spec)).shape == shape
    small = np.float32([[0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38]])
    codec, spec = Palette(8, table="f32"), f32(1, 6)
    assert np.allclose(codec.decode(spec, fill(small, codec, spec)), small, rtol=0, atol=1e-40)
    large = np.float32([[3.4e38, -3.4e38, 0.0, 1.0]])
    codec, spec = Palette(1, table="f32"), f32(1, 4)
    assert np.isfinite(codec.decode(spec, fill(large, codec, spec))).all()
    with pytest.raises(UnsupportedError) as caught:
        fill(np.float32([[1e5, 0.0]]), Palette(1), f32(1, 2))
    assert caught.value.code == "E_RANGE"
    with pytest.raises(UnsupportedError) as caught:
        fill(np.float64([[1e300, 0.0]]), Palette(1), f32(1, 2))
    assert caught.value.code == "E_NONFINITE"


def test_any_memory_gives_the_same_bytes() -> None:
    codec, spec = Palette(4, 1), f32(6, 40)
    values = np.random.default_rng(3).standard_normal((6, 40)).astype(np.float32)
    expected = codec.encode(spec, values)
    room = np.zeros(values.nbytes + 1, np.uint8)
    misaligned = room[1:].view(np.float32).reshape(6, 40)
    misaligned[...] = values
    for given in (np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2], misaligned):
        assert all(np.array_equal(codec.encode(spec, given)[part], expected[part]) for part in expected)


@pytest.mark.parametrize(
    "params",
    [
        {"bits": 5}, {"bits": True}, {"group": -1}, {"group": 2**31}, {"axis": -2}, {"axis": 0.0}, {"vector": 0},
        {"vector": 17}, {"vector_axis": -2}, {"table": "i4"}, {"scale": "i8"}, {"scale_per": "row"},
        {"table": "f32", "scale": "f16"}, {"table": "i8", "offset": "i8"}, {"table": "i8", "scale": "f16", "offset": "u8"},
        {"table": "f16", "scale": "f16", "offset": "i8"},
    ],
    ids=str,
)  # fmt: skip
def test_bad_parameters(params: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Palette(**params)


def test_shapes_it_cannot_hold() -> None:
    for codec, spec in (
        (Palette(4), f32()),
        (Palette(4), TensorSpec((2, 2), DType.F16)),
        (Palette(4, 1, 2), f32(2, 2)),
        (Palette(4, 0, 0, 2, 2), f32(2, 2)),
        (Palette(4, 3, 0, 2, 0), f32(6, 2)),
    ):
        with pytest.raises(UnsupportedError) as caught:
            codec.layout(spec)
        assert caught.value.code == "E_SPEC"
        with pytest.raises(MalformedError):
            codec.check_layout(spec, {})
    with pytest.raises(UnsupportedError) as caught:
        Palette(1, 0, 0, 2).encode(f32(4, 4), np.zeros((4, 4)))
    assert caught.value.code == "E_NO_ENCODER"


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_an_offset_uses_all_integers(kind: str) -> None:
    """The error of an entry is half a step of the range, zero included, and what rounding the scale moves: 255 · u at most."""
    values = np.random.default_rng(4).uniform(0.5, 3, (4, 500)).astype(np.float32)
    values[2:] *= -1
    codec, spec = Palette(8, 1, table=kind, scale="f32", offset=kind), f32(4, 500)
    parts = QUANTIZERS["nearest"](values, codec, spec)
    entries = codec.decode(spec, parts)
    steps = np.abs(values).max(axis=1) / 255
    uniform = (values.max(axis=1) - values.min(axis=1)) / 255
    assert (np.abs(entries - values).max(axis=1) <= uniform / 2 + steps * (0.5 + 0.5 + 1e-4)).all()
    lowest = -128 if kind == "i8" else 0
    assert parts["offset"].reshape(-1).tolist() == [lowest, lowest, lowest + 255, lowest + 255]


def test_integers_without_a_scale_are_numbers() -> None:
    codec, spec = Palette(2, table="u8"), f32(1, 4)
    assert codec.decode(spec, QUANTIZERS["kmeans"](np.float32([[0, 7, 200, 255]]), codec, spec)).tolist() == [[0, 7, 200, 255]]
    for weights, codec in (([[-1.0, 1]], Palette(1, table="u8")), ([[-1.0, 1]], Palette(1, table="u8", scale="f16"))):
        with pytest.raises(UnsupportedError, match="no negative") as caught:
            codec.encode(f32(1, 2), np.float32(weights))
        assert caught.value.code == "E_RANGE"
    with pytest.raises(UnsupportedError, match="too large") as caught:
        Palette(1, table="i8").encode(f32(1, 2), np.float32([[-129, 1]]))
    assert caught.value.code == "E_RANGE"


@pytest.mark.parametrize("quantizer", ["nearest", "kmeans"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_narrow_floats_are_taken_as_they_are(quantizer: str, kind: str) -> None:
    """No f32 copy of them is needed, and none makes a difference; more than a piece, so that tables are found in several."""
    values = np.random.default_rng(6).standard_normal((1100, 1000)).astype(FLOATS[kind])
    spec = f32(1100, 1000)
    for codec in (Palette(4), Palette(4, 16, 1), Palette(4, 0, 0, 2, 0)):
        narrow, wide = (QUANTIZERS[quantizer](given, codec, spec) for given in (values, values.astype(np.float32)))
        assert all(np.array_equal(narrow[part], wide[part]) for part in wide)


def test_an_infinite_product_is_found() -> None:
    codec, spec = Palette(1, table="f16", scale="f16"), f32(1, 8)
    parts = codec.encode(spec, np.ones((1, 8)))
    assert codec.check_values(spec, parts) is None
    assert (
        codec.check_values(spec, dict(parts) | {"scale": np.float16([[[[65504]]]]), "tables": parts["tables"] * 2}) is not None
    )


def test_a_table_for_every_place_of_several_axes() -> None:
    """As coremltools stores a scale per channel of a convolution: read, not made."""
    codec, spec = Palette(bits=2, group=1, axis=1, axes=3, scale="f16"), f32(4, 3, 2, 5)
    parts = noise(codec, spec)
    assert codec.layout(spec)["tables"].shape == (1, 3, 2, 5, 4, 1)
    tables = (parts["tables"].astype(np.float32) * parts["scale"].astype(np.float32)).astype(np.float16).astype(np.float32)
    codes = packing.unpack("little", parts["indices"][None], 2, spec.size).reshape(spec.shape)
    wanted = np.take_along_axis(np.broadcast_to(tables[..., 0], (*spec.shape, 4)), codes[..., None], -1)[..., 0]
    assert np.array_equal(codec.decode(spec, parts), wanted)
    for quantizer in ("nearest", "kmeans"):
        with pytest.raises(UnsupportedError) as caught:
            QUANTIZERS[quantizer](wanted, codec, spec)
        assert caught.value.code == "E_NO_ENCODER"
    for wrong in ({"group": 2}, {"vector": 2}, {"axis": -1}, {"axes": 9}):
        with pytest.raises(ValueError):
            Palette(**{"bits": 2, "group": 1, "axis": 1, "axes": 3, **wrong})
