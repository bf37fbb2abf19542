"""`coremltools`: the bytes of coremltools' linear quantizers, for the codec `blockwise`.

    codes                 mode               range of w         range of q
    signed, no offset     linear_symmetric   ± max|w|           −(2^(b−1) − 1) … 2^(b−1) − 1
    with an offset        linear             min … max with 0   q₀ … q₁, all codes
    unsigned, an offset   linear_symmetric   ± max|w|           0 … 2^b − 2

    s = (range of w) / (range of q)        q = clip(round(w / s) + zero)
    zero = round((q₀ · max − q₁ · min) / (max − min)); in linear_symmetric the middle of the codes

Unsigned codes have an offset in both modes: `coremltools_symmetric` is the second. Every operation rounds to the type of
the weights, which is that of the scales, f16 too; halves go to even. A block of zeros has the scale 0 and codes of 0.
Where f16 is too narrow for scale or zero, coremltools stores what decodes to something else; that is refused here.

Nothing depends on importance: it is taken, and changes nothing. The codec's own encoder is for everyone who does not need
the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.blocking import Blocking
from flyweight.codecs.blockwise import Blockwise
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import column_weights
from flyweight.codecs.value_checks import require_finite
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers.quantizer import Quantizer

_F32 = DType.F32.numpy
_SLAB = 1 << 16
"""Weights coded at a time."""
Round = Callable[[Array], Array]


def _fill(
    array: Array, codec: Blockwise, spec: TensorSpec, inputs: InputStatistics | None, *, symmetric: bool = False
) -> Parts:
    if inputs is not None:
        column_weights(inputs.importance, spec)  # refuses what is none
    blocking = codec.blocking(spec)
    if not spec.size:
        return codec.encode(spec, array)
    rounded: Round = _to_f16 if codec.scale == "f16" else _as_it_is
    values = blocking.to_block_order(_weights(array, rounded).reshape(blocking.shape))
    half = 1 << codec.bits - 1
    least = -half if codec.data[0] == "i" else 0
    most = least + 2 * half - 1
    with np.errstate(all="ignore"):
        if codec.offset and not symmetric:
            scale, zero = _linear(values, blocking.block_size, least, most, rounded)
        else:  # as many codes on either side of zero
            least, most = (least + 1, most) if least else (least, most - 1)
            scale = _symmetric(values, blocking.block_size, most - least, rounded)
            zero = np.full_like(scale, (least + most) // 2)
        codes = _codes(values, blocking.block_size, scale, zero, (least, most), rounded)
    return codec.store(spec, blocking.from_block_order(codes), scale, zero)


def _is_linear(codec: Codec) -> bool:
    return isinstance(codec, Blockwise) and (codec.offset == "data" or codec.is_symmetric)


def _has_unsigned_offset(codec: Codec) -> bool:
    return isinstance(codec, Blockwise) and codec.data in ("u4", "u8") and codec.offset == "data"


coremltools = Quantizer("coremltools", _is_linear, _fill)
symmetric = Quantizer("coremltools_symmetric", _has_unsigned_offset, partial(_fill, symmetric=True))


def _to_f16(wide: Array) -> Array:
    return astype(astype(wide, DType.F16.numpy), _F32)


def _as_it_is(wide: Array) -> Array:
    return wide


def _weights(array: Array, rounded: Round) -> Array:
    """As the model has them, in float32."""
    wide = astype(np.asarray(array), _F32)
    require_finite(np.isfinite(wide).all())
    weights = rounded(wide)
    _require(np.isfinite(weights).all(), "the weights are")
    return weights


def _extremes(values: Array, block: int) -> tuple[Array, Array]:
    """The least and the greatest value of each block, (1, blocks)."""
    starts = np.arange(0, values.shape[1], block)
    return np.minimum.reduceat(values, starts, axis=1), np.maximum.reduceat(values, starts, axis=1)


def _symmetric(values: Array, block: int, steps: int, rounded: Round) -> Array:
    low, high = _extremes(values, block)
    top = np.maximum(np.abs(low), np.abs(high))
    scale = rounded(rounded(top + top) / np.float32(steps))
    _require(np.isfinite(scale).all(), "the range of a block is")
    return scale


def _linear(values: Array, block: int, least: int, most: int, rounded: Round) -> tuple[Array, Array]:
    low, high = _extremes(values, block)
    low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0)) + np.float32(0)  # a zero that is positive
    span = rounded(high - low)
    scale = rounded(span / np.float32(most - least))
    zero = rounded(rounded(rounded(np.float32(least) * high) - rounded(np.float32(most) * low)) / span)
    _require(np.isfinite(scale).all(), "the range of a block is")
    zero[span == 0] = 0
    _require(np.isfinite(zero).all(), "the ends of a block, times the codes they have, are")
    return scale, np.clip(np.rint(zero), least, most)


def _codes(values: Array, block: int, scale: Array, zero: Array, ends: tuple[int, int], rounded: Round) -> Array:
    """Codes of a byte each, two's complement, in the order of the values."""
    codes = np.empty(values.shape, np.uint8)
    blocks = Blocking.of(TensorSpec((scale.size, block), DType.F32), (1,))
    for start in range(0, values.size, _SLAB):
        some = values[:, start : start + _SLAB]
        by, shift = (blocks.of_elements(part, start, start + some.size) for part in (scale, zero))
        steps = np.clip(np.rint(rounded(some / by)) + shift, *ends)
        steps[np.isnan(steps)] = 0  # zero over zero
        codes[:, start : start + _SLAB] = steps.astype(np.int16).astype(np.uint8)
    return codes


def _require(fits: bool | np.bool, what: str) -> None:
    if not fits:
        raise UnsupportedError(
            f"{what} too large for the type of the weights, in which coremltools quantizes",
            code="E_RANGE",
            hint="use the quantizer nearest, or f32 scales",
        )
