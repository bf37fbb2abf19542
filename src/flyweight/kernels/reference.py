"""The definition of every kernel, in NumPy. Native kernels equal these bit for bit.

Blocks are rows of bytes, one block a row; every field is little-endian. Products and sums are
rounded to f32 one by one, in the order written here. The block layouts are in
docs/formats/ggml-blocks.md.

Nothing is checked here: callers come through `flyweight.kernels`, which has checked the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__: list[str] = []  # named by `flyweight.kernels.KERNELS`

Array = np.ndarray[Any, Any]

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
"""The sixteen levels of iq4_nl and iq4_xs, in units of the scale."""

E2M1_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
"""The sixteen FP4 (E2M1) values, doubled; the block scale is halved to match."""

F16_NAN = np.frombuffer(b"\x00\x7e", dtype=np.uint8)
"""The scale of a block that cannot be encoded because a value in it is not finite."""

E8M0_NAN = 0xFF


# Fields of a block ----------------------------------------------------------------------------


def _f16(blocks: Array, at: int) -> Array:
    """The half-precision field at byte `at` of every block, as f32. (n, 1)"""
    return np.asarray(blocks[:, at : at + 2].view("<f2"), dtype=np.float32)


def _planes(packed: Array, run: int, bits: int) -> Array:
    """Codes of `bits` bits: in each run of bytes, byte i holds elements i, i + run, i + 2·run … from its low bits up."""
    n, nbytes = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    codes: Array = (packed.reshape(n, nbytes // run, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(n, nbytes * 8 // bits)


def _to_planes(codes: Array, run: int, bits: int) -> Array:
    n, count = codes.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    shifted = codes.reshape(n, count // (run * 8 // bits), 8 // bits, run) << shifts
    joined: Array = np.bitwise_or.reduce(shifted, axis=2)
    return joined.reshape(n, count * bits // 8)


def _signed(codes: Array, zero: int) -> Array:
    return (codes.astype(np.int16) - np.int16(zero)).astype(np.float32)


def _scales_and_mins(packed: Array) -> tuple[Array, Array]:
    """The eight 6-bit scales and eight 6-bit minimums in the twelve bytes of q4_k and q5_k. 2 × (n, 8)

    Bytes 0–3 hold scales 0–3 and bytes 4–7 minimums 0–3 in their low six bits; bytes 8–11 hold the low
    four bits of scales 4–7 (low nibble) and minimums 4–7, whose top two bits are the ones left above.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = [first & 0x3F, (third & 0x0F) | (first >> 6 << 4)]
    mins = [second & 0x3F, (third >> 4) | (second >> 6 << 4)]
    return np.concatenate(scales, axis=1).astype(np.float32), np.concatenate(mins, axis=1).astype(np.float32)


def _scaled(scale: Array, values: Array, out: Array) -> None:
    """out = scale[:, g] · values, one scale per equal share of the row."""
    n, groups = scale.shape
    grouped = (n, groups, out.shape[1] // groups)
    np.multiply(scale[:, :, None], values.reshape(grouped), out=out.reshape(grouped))


def _scaled_minus(scale: Array, values: Array, minus: Array, out: Array) -> None:
    """out = scale[:, g] · values − minus[:, g], rounded twice."""
    _scaled(scale, values, out)
    grouped = out.reshape(len(out), minus.shape[1], out.shape[1] // minus.shape[1])
    np.subtract(grouped, minus[:, :, None], out=grouped)


# Decoding: 32 elements a block ----------------------------------------------------------------


def decode_q4_0(blocks: Array, out: Array) -> None:
    np.multiply(_f16(blocks, 0), _signed(_planes(blocks[:, 2:18], 16, 4), 8), out=out)


def decode_q4_1(blocks: Array, out: Array) -> None:
    np.multiply(_f16(blocks, 0), _planes(blocks[:, 4:20], 16, 4).astype(np.float32), out=out)
    np.add(out, _f16(blocks, 2), out=out)


def decode_q5_0(blocks: Array, out: Array) -> None:
    codes = _planes(blocks[:, 6:22], 16, 4) | (_planes(blocks[:, 2:6], 1, 1) << 4)
    np.multiply(_f16(blocks, 0), _signed(codes, 16), out=out)


def decode_q5_1(blocks: Array, out: Array) -> None:
    codes = _planes(blocks[:, 8:24], 16, 4) | (_planes(blocks[:, 4:8], 1, 1) << 4)
    np.multiply(_f16(blocks, 0), codes.astype(np.float32), out=out)
    np.add(out, _f16(blocks, 2), out=out)


def decode_q8_0(blocks: Array, out: Array) -> None:
    np.multiply(_f16(blocks, 0), blocks[:, 2:34].view(np.int8).astype(np.float32), out=out)


def decode_q8_1(blocks: Array, out: Array) -> None:
    np.multiply(_f16(blocks, 0), blocks[:, 4:36].view(np.int8).astype(np.float32), out=out)


def decode_mxfp4(blocks: Array, out: Array) -> None:
    np.multiply(_half_e8m0(blocks[:, 0:1]), E2M1_VALUES[_planes(blocks[:, 1:17], 16, 4)], out=out)


def decode_iq4_nl(blocks: Array, out: Array) -> None:
    np.multiply(_f16(blocks, 0), IQ4_VALUES[_planes(blocks[:, 2:18], 16, 4)], out=out)


def _half_e8m0(exponents: Array) -> Array:
    """2**(e − 128): the E8M0 scale 2**(e − 127), halved."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


# Decoding: 256 elements a block ---------------------------------------------------------------


def decode_q2_k(blocks: Array, out: Array) -> None:
    packed = blocks[:, 0:16]
    scale = _f16(blocks, 80) * (packed & 0x0F).astype(np.float32)
    minus = _f16(blocks, 82) * (packed >> 4).astype(np.float32)
    _scaled_minus(scale, _planes(blocks[:, 16:80], 32, 2).astype(np.float32), minus, out)


def decode_q3_k(blocks: Array, out: Array) -> None:
    codes = _planes(blocks[:, 32:96], 32, 2) | (_planes(blocks[:, 0:32], 32, 1) << 2)
    steps = _planes(blocks[:, 96:104], 8, 4) | (_planes(blocks[:, 104:108], 4, 2) << 4)
    _scaled(_f16(blocks, 108) * _signed(steps, 32), _signed(codes, 4), out)


def decode_q4_k(blocks: Array, out: Array) -> None:
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = _planes(blocks[:, 16:144], 32, 4).astype(np.float32)
    _scaled_minus(_f16(blocks, 0) * scales, codes, _f16(blocks, 2) * mins, out)


def decode_q5_k(blocks: Array, out: Array) -> None:
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = _planes(blocks[:, 48:176], 32, 4) | (_planes(blocks[:, 16:48], 32, 1) << 4)
    _scaled_minus(_f16(blocks, 0) * scales, codes.astype(np.float32), _f16(blocks, 2) * mins, out)


def decode_q6_k(blocks: Array, out: Array) -> None:
    codes = _planes(blocks[:, 0:128], 64, 4) | (_planes(blocks[:, 128:192], 32, 2) << 4)
    steps = blocks[:, 192:208].view(np.int8).astype(np.float32)
    _scaled(_f16(blocks, 208) * steps, _signed(codes, 32), out)


def decode_q8_k(blocks: Array, out: Array) -> None:
    np.multiply(blocks[:, 0:4].view("<f4"), blocks[:, 4:260].view(np.int8).astype(np.float32), out=out)


def decode_iq4_xs(blocks: Array, out: Array) -> None:
    steps = _planes(blocks[:, 4:8], 1, 4) | (_planes(blocks[:, 2:4], 1, 2) << 4)
    _scaled(_f16(blocks, 0) * _signed(steps, 32), IQ4_VALUES[_planes(blocks[:, 8:136], 16, 4)], out)


# Encoding -------------------------------------------------------------------------------------


def _inverse(scale: Array) -> Array:
    """1 / scale, or 0 where that is infinite: such a block is too small for its scale and stores zeros."""
    inverse = np.float32(1) / scale
    return np.where(np.isinf(inverse), np.float32(0), inverse)


def _codes(values: Array, top: int) -> Array:
    """Truncated, held within 0..top; NaN gives 0."""
    return np.where(values > 0, np.minimum(values, np.float32(top)), np.float32(0)).astype(np.uint8)


def _unfit(values: Array) -> Array:
    """Which blocks hold a value that is not finite. (n,)"""
    return np.asarray(~np.isfinite(values).all(axis=1))


def _void(values: Array, blocks: Array) -> None:
    """Mark the blocks that hold NaN or infinity: NaN scale, zero elsewhere."""
    unfit = _unfit(values)
    blocks[unfit] = 0
    blocks[unfit, 0:2] = F16_NAN


def _encode_signed(values: Array, half: int) -> tuple[Array, Array]:
    """Scale and codes in 0..2·half−1 of w = d·(code − half): the value of largest magnitude (the first such) lands on 0."""
    peak = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scale = peak / np.float32(-half)
    return scale, _codes(values * _inverse(scale) + np.float32(half + 0.5), 2 * half - 1)


def _encode_ranged(values: Array, top: int) -> tuple[Array, Array, Array]:
    """Scale, minimum and codes in 0..top of w = d·code + m.

    Of equal extremes the first counts, which decides the sign of a zero minimum.
    """
    low = np.take_along_axis(values, values.argmin(axis=1, keepdims=True), axis=1)
    high = np.take_along_axis(values, values.argmax(axis=1, keepdims=True), axis=1)
    scale = (high - low) / np.float32(top)
    return scale, low, _codes((values - low) * _inverse(scale) + np.float32(0.5), top)


def _put_f16(blocks: Array, at: int, values: Array) -> None:
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8)


def encode_q4_0(values: Array, blocks: Array) -> None:
    scale, codes = _encode_signed(values, 8)
    _put_f16(blocks, 0, scale)
    blocks[:, 2:18] = _to_planes(codes, 16, 4)
    _void(values, blocks)


def encode_q4_1(values: Array, blocks: Array) -> None:
    scale, low, codes = _encode_ranged(values, 15)
    _put_f16(blocks, 0, scale)
    _put_f16(blocks, 2, low)
    blocks[:, 4:20] = _to_planes(codes, 16, 4)
    _void(values, blocks)


def encode_q5_0(values: Array, blocks: Array) -> None:
    scale, codes = _encode_signed(values, 16)
    _put_f16(blocks, 0, scale)
    blocks[:, 2:6] = _to_planes(codes >> 4, 1, 1)
    blocks[:, 6:22] = _to_planes(codes & 0x0F, 16, 4)
    _void(values, blocks)


def encode_q5_1(values: Array, blocks: Array) -> None:
    scale, low, codes = _encode_ranged(values, 31)
    _put_f16(blocks, 0, scale)
    _put_f16(blocks, 2, low)
    blocks[:, 4:8] = _to_planes(codes >> 4, 1, 1)
    blocks[:, 8:24] = _to_planes(codes & 0x0F, 16, 4)
    _void(values, blocks)


def encode_q8_0(values: Array, blocks: Array) -> None:
    """Rounds halves away from zero, as ggml does."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.nan_to_num(values * _inverse(scale), nan=0, posinf=0, neginf=0)
    whole = np.trunc(steps)
    whole += np.trunc(np.float32(2) * (steps - whole))
    _put_f16(blocks, 0, scale)
    blocks[:, 2:34] = whole.astype(np.int8).view(np.uint8)
    _void(values, blocks)


def encode_mxfp4(values: Array, blocks: Array) -> None:
    """The nearest of the sixteen values, the first of two equally near; 2**e puts the largest magnitude in [4, 8).

    The exponent comes from a base-2 logarithm rounded to f32, so a magnitude within a few units in the
    last place below a power of two counts as that power. It is held at 0 from below.
    """
    peak = np.abs(values).max(axis=1, keepdims=True)
    log2 = np.floor(np.log2(peak.astype(np.float64)).astype(np.float32))
    exponent = _codes(np.where(peak > 0, log2 + np.float32(125), np.float32(0)), 254)
    levels = _half_e8m0(exponent) * E2M1_VALUES
    errors = np.abs(levels[:, None, :] - values[:, :, None])
    blocks[:, 0:1] = exponent
    blocks[:, 1:17] = _to_planes(errors.argmin(axis=2).astype(np.uint8), 16, 4)
    unfit = _unfit(values)
    blocks[unfit] = 0
    blocks[unfit, 0] = E8M0_NAN


# Bit streams ----------------------------------------------------------------------------------


def unpack_bits(packed: Array, bits: int, out: Array) -> None:
    """Each row of bytes is a little-endian bit stream: element j is the `bits` bits from bit j·bits up."""
    rows, count = out.shape
    stream = np.unpackbits(packed, axis=1, count=count * bits, bitorder="little")
    out[...] = np.packbits(stream.reshape(rows, count, bits), axis=2, bitorder="little").reshape(rows, count)


def pack_bits(codes: Array, bits: int, out: Array) -> None:
    """The inverse of `unpack_bits`. Bits of a code above `bits` are dropped; bytes after the stream are zero."""
    rows, count = codes.shape
    stream = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little").reshape(rows, count * bits)
    packed = np.packbits(stream, axis=1, bitorder="little")
    out[:, : packed.shape[1]] = packed
    out[:, packed.shape[1] :] = 0
