"""Every native kernel equals its NumPy definition bit for bit, on every instruction set."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs import ggml

CODECS = {codec.name: codec for codec in ggml.CODECS}
BITS = range(1, 9)
STREAMED = 16 << 20
"""Output bytes from which kernels store round the caches."""
SPECIAL_SCALES = np.array(
    [0.0, -0.0, 1.0, -1.0, 2.0**-24, -(2.0**-24), 1023 * 2.0**-24, 2.0**-14, 65504.0, -65504.0, np.inf, -np.inf, np.nan]
)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bits; one NaN is as good as another (their payloads differ between processors)."""
    if found.dtype != np.float32:
        return np.array_equal(found, expected)
    return bool(np.all((found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))))


def by_reference(kernel: str, *arguments: object, out: np.ndarray) -> np.ndarray:
    """What the definition gives, whatever set is active."""
    with np.errstate(all="ignore"):
        kernels.definition(kernel)(*arguments, out)
    return out


def native(kernel: str, *arguments: object, out: np.ndarray) -> np.ndarray:
    out.view(np.uint8)[...] = 0xA5  # a byte left unwritten shows
    getattr(kernels, kernel)(*arguments, out)
    return out


def random_blocks(name: str, count: int, seed: int = 1) -> np.ndarray:
    """Random bytes; in a third of the blocks the scales are small and finite, in a third they are special."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, kernels.BLOCKS[name][1]), dtype=np.uint8)
    for at, kind in CODECS[name].scales:
        width = np.dtype(kind).itemsize
        small = (rng.standard_normal((count, 1)) * 10.0 ** rng.integers(-8, 2, (count, 1))).astype(kind)
        special = rng.choice(SPECIAL_SCALES, (count, 1)).astype(kind)
        blocks[0::3, at : at + width] = small[0::3].view(np.uint8)
        blocks[1::3, at : at + width] = special[1::3].view(np.uint8)
    return blocks


def random_values(count: int, seed: int = 2) -> np.ndarray:
    """Blocks of 32 of every magnitude, with halves, zeros of both signs, repeated extremes, overflow, NaN and infinity."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, 32)) * 10.0 ** rng.integers(-44, 38, (count, 1))
    values = np.clip(values, -3.4e38, 3.4e38).astype(np.float32)
    kind = rng.integers(0, 12, count)
    values[kind == 1] = np.round(rng.standard_normal(((kind == 1).sum(), 32)) * 4) / 2
    values[kind == 2] = 0.0
    values[kind == 3] = rng.choice(np.float32([0.0, -0.0]), ((kind == 3).sum(), 32))
    values[kind == 4] = rng.choice(np.float32([1.5, -1.5, 0.0, -0.0]), ((kind == 4).sum(), 32))
    values[kind == 5] = rng.choice(np.float32([3.4e38, -3.4e38, 1.0]), ((kind == 5).sum(), 32))
    values[kind == 6, 5] = np.nan
    values[kind == 7, 31] = np.inf
    values[kind == 8, 0] = -np.inf
    values[kind == 9] = rng.uniform(-0.05, 0.05, ((kind == 9).sum(), 32))
    return values


@pytest.mark.parametrize("name", kernels.DECODED)
def test_decode_every_tail(isa: str, name: str) -> None:
    size, _ = kernels.BLOCKS[name]
    blocks = random_blocks(name, 257)
    expected = by_reference(f"decode_{name}", blocks, out=np.empty((257, size), np.float32))
    room = np.empty((258, size), np.float32)
    for count in range(258):
        room[...] = 7.0
        getattr(kernels, f"decode_{name}")(blocks[:count], room[:count])
        assert same(room[:count], expected[:count])
        assert (room[count:] == 7.0).all()


@pytest.mark.parametrize("name", kernels.ENCODED)
def test_encode_every_tail(isa: str, name: str) -> None:
    nbytes = kernels.BLOCKS[name][1]
    values = random_values(257)
    expected = by_reference(f"encode_{name}", values, out=np.empty((257, nbytes), np.uint8))
    room = np.empty((258, nbytes), np.uint8)
    for count in range(258):
        room[...] = 0xA5
        getattr(kernels, f"encode_{name}")(values[:count], room[:count])
        assert same(room[:count], expected[:count])
        assert (room[count:] == 0xA5).all()


@pytest.mark.parametrize("name", kernels.DECODED)
def test_decode_many(isa: str, name: str) -> None:
    size, _ = kernels.BLOCKS[name]
    count = 400_000 // size
    blocks = random_blocks(name, count, seed=3)
    out = np.empty((count, size), np.float32)
    assert same(native(f"decode_{name}", blocks, out=out), by_reference(f"decode_{name}", blocks, out=np.empty_like(out)))


@pytest.mark.parametrize("name", kernels.ENCODED)
def test_encode_many(isa: str, name: str) -> None:
    values = random_values(6000, seed=4)
    out = np.empty((6000, kernels.BLOCKS[name][1]), np.uint8)
    assert same(native(f"encode_{name}", values, out=out), by_reference(f"encode_{name}", values, out=np.empty_like(out)))


@pytest.mark.parametrize("name", kernels.ENCODED)
def test_encode_bf16_as_its_values(isa: str, fenced, name: str) -> None:
    """Every tail; bf16 repeats its extremes often, with both signs."""
    nbytes = kernels.BLOCKS[name][1]
    for count in (1, 7, 8, 9, 1000):
        with np.errstate(all="ignore"):
            narrow = fenced((count, 32), ml_dtypes.bfloat16, random_values(count, seed=count).astype(ml_dtypes.bfloat16))
        wide = narrow.astype(np.float32)
        out = native(f"encode_{name}", narrow, out=fenced((count, nbytes), np.uint8))
        assert same(out, by_reference(f"encode_{name}", wide, out=np.empty((count, nbytes), np.uint8)))
        assert same(out, by_reference(f"encode_{name}", narrow.view(np.uint16), out=np.empty((count, nbytes), np.uint8)))


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1"])
def test_encode_zeros_of_both_signs(isa: str, name: str) -> None:
    """Which zero comes first decides the sign of a scale or a minimum."""
    rng = np.random.default_rng(6)
    values = rng.choice(np.float32([0.0, -0.0]), (4000, 32))
    values[1000:2000] *= rng.random((1000, 32)) < 0.5
    values[2000:] += np.where(rng.random((2000, 32)) < 0.05, rng.choice(np.float32([1, -1]), (2000, 1)), np.float32(0))
    out = native(f"encode_{name}", values, out=np.empty((4000, kernels.BLOCKS[name][1]), np.uint8))
    assert same(out, by_reference(f"encode_{name}", values, out=np.empty_like(out)))


@pytest.mark.parametrize("name", kernels.DECODED)
def test_decode_any_start(isa: str, name: str) -> None:
    size, nbytes = kernels.BLOCKS[name]
    blocks = random_blocks(name, 5)
    expected = by_reference(f"decode_{name}", blocks, out=np.empty((5, size), np.float32))
    for start in range(17):
        shifted = np.zeros(blocks.size + 64, np.uint8)[start : start + blocks.size].reshape(5, nbytes)
        shifted[...] = blocks
        out = np.zeros(expected.size + 64, np.float32)[start : start + expected.size].reshape(5, size)
        assert same(native(f"decode_{name}", shifted, out=out), expected)


@pytest.mark.parametrize("name", kernels.DECODED)
def test_decode_past_the_caches(isa: str, name: str) -> None:
    """From 16 MB up stores go round the caches: any alignment of the output, f32 and bf16, and nothing beside it."""
    size, _ = kernels.BLOCKS[name]
    tile = random_blocks(name, 3 * 64)
    expected = by_reference(f"decode_{name}", tile, out=np.empty((len(tile), size), np.float32))
    for dtype in (np.float32, ml_dtypes.bfloat16):
        rounded = np.empty(expected.shape, dtype)
        if dtype is np.float32:
            rounded[...] = expected
        else:
            kernels.definition("f32_to_bf16")(expected, rounded.view(np.uint16))
        times = -(-STREAMED // rounded.nbytes)
        blocks = np.tile(tile, (times, 1))
        room = np.empty(rounded.size * times + 64, dtype)
        for start in (0, 1, 4, 8):
            room.view(np.uint8)[...] = 0xA5
            out = room[start : start + rounded.size * times].reshape(-1, size)
            getattr(kernels, f"decode_{name}")(blocks, out)
            bits = f"u{rounded.itemsize}"
            matches = out.reshape(times, -1).view(bits) == rounded.reshape(1, -1).view(bits)
            assert (matches | np.isnan(expected).reshape(1, -1)).all()
            assert (room[:start].view(np.uint8) == 0xA5).all()
            assert (room[start + rounded.size * times :].view(np.uint8) == 0xA5).all()


@pytest.mark.parametrize("name", kernels.DECODED)
def test_decode_to_bf16_rounds_the_values(isa: str, name: str) -> None:
    size, _ = kernels.BLOCKS[name]
    blocks = random_blocks(name, 100, seed=5)
    values = by_reference(f"decode_{name}", blocks, out=np.empty((100, size), np.float32))
    out = native(f"decode_{name}", blocks, out=np.empty((100, size), ml_dtypes.bfloat16))
    finite = ~np.isnan(values)
    assert np.array_equal(out.view(np.uint16)[finite], values.astype(ml_dtypes.bfloat16).view(np.uint16)[finite])
    assert np.isnan(out.astype(np.float32)[~finite]).all()


@pytest.mark.parametrize("name", kernels.DECODED)
@pytest.mark.parametrize("count", [1, 2, 31])
def test_decode_stays_inside(isa: str, fenced, name: str, count: int) -> None:
    size, nbytes = kernels.BLOCKS[name]
    source = random_blocks(name, count)
    expected = by_reference(f"decode_{name}", source, out=np.empty((count, size), np.float32))
    assert same(
        native(f"decode_{name}", fenced((count, nbytes), np.uint8, source), out=fenced((count, size), np.float32)), expected
    )


@pytest.mark.parametrize("name", kernels.ENCODED)
@pytest.mark.parametrize("count", [1, 2, 31])
def test_encode_stays_inside(isa: str, fenced, name: str, count: int) -> None:
    nbytes = kernels.BLOCKS[name][1]
    source = random_values(count)
    expected = by_reference(f"encode_{name}", source, out=np.empty((count, nbytes), np.uint8))
    assert same(
        native(f"encode_{name}", fenced((count, 32), np.float32, source), out=fenced((count, nbytes), np.uint8)), expected
    )


def test_every_half_widens_exactly(isa: str) -> None:
    blocks = np.zeros((1 << 16, 34), np.uint8)
    blocks[:, 0:2] = np.arange(1 << 16, dtype="<u2").reshape(-1, 1).view(np.uint8)
    blocks[:, 2:] = 1
    out = native("decode_q8_0", blocks, out=np.empty((1 << 16, 32), np.float32))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    assert same(np.ascontiguousarray(out[:, 0]), halves)


def test_every_tie_narrows_as_numpy_does(isa: str) -> None:
    """A constant block of q4_1 stores its value as f16: every half, every midpoint, and their neighbours."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    midpoints = (halves[:-1] + halves[1:]) / np.float32(2)
    edges = np.concatenate([halves, midpoints, np.float32([65519.0, 65520.0, 65536.0, 1e30])])
    wanted = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))])
    wanted = np.concatenate([wanted, -wanted])
    out = native("encode_q4_1", np.repeat(wanted[:, None], 32, axis=1), out=np.empty((len(wanted), 20), np.uint8))
    with np.errstate(over="ignore"):
        assert np.array_equal(out[:, 2:4].copy().view("<f2")[:, 0].view(np.uint16), wanted.astype(np.float16).view(np.uint16))


def test_every_power_of_two_has_its_exponent(isa: str) -> None:
    """The logarithm that mxfp4 rounds: 64 values either side of every power of two."""
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).view(np.uint32).astype(np.int64)
    bits = (powers[:, None] + np.arange(-64, 65)).clip(0, 0x7F7FFFFF).astype(np.uint32).ravel()
    values = np.zeros((len(bits), 32), np.float32)
    values[:, 3] = bits.view(np.float32)
    out = native("encode_mxfp4", values, out=np.empty((len(bits), 17), np.uint8))
    assert same(out, by_reference("encode_mxfp4", values, out=np.empty_like(out)))


@pytest.mark.parametrize("bits", BITS)
def test_bit_streams(isa: str, fenced, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for count in [*range(34), 63, 257]:
        for spare in (0, 3):
            nbytes = -(-count * bits // 8) + spare
            packed = fenced((3, nbytes), np.uint8, rng.integers(0, 256, (3, nbytes), dtype=np.uint8))
            codes = native("unpack_bits", packed, bits, out=fenced((3, count), np.uint8))
            assert same(codes, by_reference("unpack_bits", packed, bits, out=np.empty((3, count), np.uint8)))
            loose = fenced((3, count), np.uint8, rng.integers(0, 256, (3, count), dtype=np.uint8))
            stream = native("pack_bits", loose, bits, out=fenced((3, nbytes), np.uint8))
            assert same(stream, by_reference("pack_bits", loose, bits, out=np.empty((3, nbytes), np.uint8)))
            again = native("unpack_bits", stream, bits, out=np.empty((3, count), np.uint8))
            assert same(again, loose & np.uint8((1 << bits) - 1))
