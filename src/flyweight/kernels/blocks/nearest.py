"""Values to blocks of 32, by nearest rounding. A block with a value that is not finite has a NaN scale, and zeros."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.kernels.blocks.fields import FORMS, Fields
from flyweight.kernels.blocks.layout import E2M1_VALUES, E8M0_NAN, F16_NAN, half_e8m0, to_planes
from flyweight.kernels.checks import U8, Array, check, check_numbers
from flyweight.kernels.registry import kernel
from flyweight.kernels.streams.float_casts import also_from_bf16


def _encoder(definition: Callable[[Array, Array], None]) -> Callable[[Array, Array], None]:
    """The checked kernel of a definition, by whose name the type is known."""
    own = GGML_TYPES[definition.__name__.removeprefix("encode_")]
    registered = kernel(also_from_bf16(definition))

    @wraps(definition)
    def encode(values: Array, blocks: Array) -> None:
        numbers = check_numbers(values, (None, own.elements))
        check("blocks", blocks, U8, (len(values), own.nbytes), written=True)
        registered.run(numbers, blocks)

    encode.__doc__ = f"Blocks of {own.name}. values: f32 or bf16 (n, {own.elements}), blocks: u8 (n, {own.nbytes})."
    return encode


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


def _encode_ranged(values: Array, top: int) -> Fields:
    """Scale, minimum and codes in 0..top of w = d·code + m.

    Of equal extremes the first counts, which decides the sign of a zero minimum.
    """
    low = np.take_along_axis(values, values.argmin(axis=1, keepdims=True), axis=1)
    high = np.take_along_axis(values, values.argmax(axis=1, keepdims=True), axis=1)
    scale = (high - low) / np.float32(top)
    return Fields(scale, _codes((values - low) * _inverse(scale) + np.float32(0.5), top), low)


def _put_f16(blocks: Array, at: int, values: Array) -> None:
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8)


@_encoder
def encode_q4_0(values: Array, blocks: Array) -> None:
    FORMS["q4_0"].write(blocks, Fields(*_encode_signed(values, 8)))
    _void(values, blocks)


@_encoder
def encode_q4_1(values: Array, blocks: Array) -> None:
    FORMS["q4_1"].write(blocks, _encode_ranged(values, 15))
    _void(values, blocks)


@_encoder
def encode_q5_0(values: Array, blocks: Array) -> None:
    FORMS["q5_0"].write(blocks, Fields(*_encode_signed(values, 16)))
    _void(values, blocks)


@_encoder
def encode_q5_1(values: Array, blocks: Array) -> None:
    FORMS["q5_1"].write(blocks, _encode_ranged(values, 31))
    _void(values, blocks)


def _encode_bytes(values: Array) -> tuple[Array, Array]:
    """Scale and codes of w = d·code: halves are rounded away from zero, as ggml does."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.nan_to_num(values * _inverse(scale), nan=0, posinf=0, neginf=0)
    whole = np.trunc(steps)
    whole += np.trunc(np.float32(2) * (steps - whole))
    return scale, whole.astype(np.int8)


@_encoder
def encode_q8_0(values: Array, blocks: Array) -> None:
    scale, codes = _encode_bytes(values)
    FORMS["q8_0"].write(blocks, Fields(scale, codes.view(np.uint8) ^ np.uint8(0x80)))
    _void(values, blocks)


@_encoder
def encode_q8_1(values: Array, blocks: Array) -> None:
    """As q8_0; the sum of the codes and its product with the stored scale are rounded to f16 one after the other.

    The product with an infinite scale is infinite, whatever the sum.
    """
    scale, codes = _encode_bytes(values)
    _put_f16(blocks, 0, scale)
    stored = scale.astype(np.float16).astype(np.float32)
    total = codes.sum(axis=1, keepdims=True, dtype=np.int32).astype(np.float16).astype(np.float32)
    _put_f16(blocks, 2, np.where(np.isinf(stored), stored, total * stored))
    blocks[:, 4:36] = codes.view(np.uint8)
    _void(values, blocks)


@_encoder
def encode_mxfp4(values: Array, blocks: Array) -> None:
    """The nearest of the sixteen values, the first of two equally near; 2**e puts the largest magnitude in [4, 8).

    The exponent comes from a base-2 logarithm rounded to f32, so a magnitude within a few units in the
    last place below a power of two counts as that power. It is held at 0 from below.
    """
    peak = np.abs(values).max(axis=1, keepdims=True)
    log2 = np.floor(np.log2(peak.astype(np.float64)).astype(np.float32))
    exponent = _codes(np.where(peak > 0, log2 + np.float32(125), np.float32(0)), 254)
    levels = half_e8m0(exponent) * E2M1_VALUES
    errors = np.abs(levels[:, None, :] - values[:, :, None])
    blocks[:, 0:1] = exponent
    blocks[:, 1:17] = to_planes(errors.argmin(axis=2).astype(np.uint8), 16, 4)
    unfit = _unfit(values)
    blocks[unfit] = 0
    blocks[unfit, 0] = E8M0_NAN
