"""Blocks of ggml to values. Products and sums are rounded to f32 one by one, in the order written here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.kernels.blocks.layout import E2M1_VALUES, IQ4_VALUES, f16_field, half_e8m0, planes_of
from flyweight.kernels.checks import U8, Array, check, check_values
from flyweight.kernels.registry import kernel
from flyweight.kernels.streams.float_casts import also_to_bf16


def _decoder(definition: Callable[[Array, Array], None]) -> Callable[[Array, Array], None]:
    """The checked kernel of a definition, by whose name the type is known."""
    own = GGML_TYPES[definition.__name__.removeprefix("decode_")]
    registered = kernel(also_to_bf16(definition))

    @wraps(definition)
    def decode(blocks: Array, out: Array) -> None:
        check("blocks", blocks, U8, (None, own.nbytes))
        registered.run(blocks, check_values(out, (len(blocks), own.elements)))

    decode.__doc__ = f"Values of {own.name} blocks. blocks: u8 (n, {own.nbytes}), out: f32 or bf16 (n, {own.elements})."
    return decode


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


@_decoder
def decode_q4_0(blocks: Array, out: Array) -> None:
    np.multiply(f16_field(blocks, 0), _signed(planes_of(blocks[:, 2:18], 16, 4), 8), out=out)


@_decoder
def decode_q4_1(blocks: Array, out: Array) -> None:
    np.multiply(f16_field(blocks, 0), planes_of(blocks[:, 4:20], 16, 4).astype(np.float32), out=out)
    np.add(out, f16_field(blocks, 2), out=out)


@_decoder
def decode_q5_0(blocks: Array, out: Array) -> None:
    codes = planes_of(blocks[:, 6:22], 16, 4) | (planes_of(blocks[:, 2:6], 1, 1) << 4)
    np.multiply(f16_field(blocks, 0), _signed(codes, 16), out=out)


@_decoder
def decode_q5_1(blocks: Array, out: Array) -> None:
    codes = planes_of(blocks[:, 8:24], 16, 4) | (planes_of(blocks[:, 4:8], 1, 1) << 4)
    np.multiply(f16_field(blocks, 0), codes.astype(np.float32), out=out)
    np.add(out, f16_field(blocks, 2), out=out)


@_decoder
def decode_q8_0(blocks: Array, out: Array) -> None:
    np.multiply(f16_field(blocks, 0), blocks[:, 2:34].view(np.int8).astype(np.float32), out=out)


@_decoder
def decode_q8_1(blocks: Array, out: Array) -> None:
    np.multiply(f16_field(blocks, 0), blocks[:, 4:36].view(np.int8).astype(np.float32), out=out)


@_decoder
def decode_mxfp4(blocks: Array, out: Array) -> None:
    np.multiply(half_e8m0(blocks[:, 0:1]), E2M1_VALUES[planes_of(blocks[:, 1:17], 16, 4)], out=out)


@_decoder
def decode_iq4_nl(blocks: Array, out: Array) -> None:
    np.multiply(f16_field(blocks, 0), IQ4_VALUES[planes_of(blocks[:, 2:18], 16, 4)], out=out)


# Decoding: 256 elements a block ---------------------------------------------------------------


@_decoder
def decode_q2_k(blocks: Array, out: Array) -> None:
    packed = blocks[:, 0:16]
    scale = f16_field(blocks, 80) * (packed & 0x0F).astype(np.float32)
    minus = f16_field(blocks, 82) * (packed >> 4).astype(np.float32)
    _scaled_minus(scale, planes_of(blocks[:, 16:80], 32, 2).astype(np.float32), minus, out)


@_decoder
def decode_q3_k(blocks: Array, out: Array) -> None:
    codes = planes_of(blocks[:, 32:96], 32, 2) | (planes_of(blocks[:, 0:32], 32, 1) << 2)
    steps = planes_of(blocks[:, 96:104], 8, 4) | (planes_of(blocks[:, 104:108], 4, 2) << 4)
    _scaled(f16_field(blocks, 108) * _signed(steps, 32), _signed(codes, 4), out)


@_decoder
def decode_q4_k(blocks: Array, out: Array) -> None:
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = planes_of(blocks[:, 16:144], 32, 4).astype(np.float32)
    _scaled_minus(f16_field(blocks, 0) * scales, codes, f16_field(blocks, 2) * mins, out)


@_decoder
def decode_q5_k(blocks: Array, out: Array) -> None:
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = planes_of(blocks[:, 48:176], 32, 4) | (planes_of(blocks[:, 16:48], 32, 1) << 4)
    _scaled_minus(f16_field(blocks, 0) * scales, codes.astype(np.float32), f16_field(blocks, 2) * mins, out)


@_decoder
def decode_q6_k(blocks: Array, out: Array) -> None:
    codes = planes_of(blocks[:, 0:128], 64, 4) | (planes_of(blocks[:, 128:192], 32, 2) << 4)
    steps = blocks[:, 192:208].view(np.int8).astype(np.float32)
    _scaled(f16_field(blocks, 208) * steps, _signed(codes, 32), out)


@_decoder
def decode_q8_k(blocks: Array, out: Array) -> None:
    np.multiply(blocks[:, 0:4].view("<f4"), blocks[:, 4:260].view(np.int8).astype(np.float32), out=out)


@_decoder
def decode_iq4_xs(blocks: Array, out: Array) -> None:
    steps = planes_of(blocks[:, 4:8], 1, 4) | (planes_of(blocks[:, 2:4], 1, 2) << 4)
    _scaled(f16_field(blocks, 0) * _signed(steps, 32), IQ4_VALUES[planes_of(blocks[:, 8:136], 16, 4)], out)
