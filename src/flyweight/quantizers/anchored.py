"""`anchored`: zero and the extreme of larger magnitude are exact. MLX's rule for w = s · q + b, llama.cpp's for w = s · q.

**w = s · q + b**, the codec `affine`. For each group, with all arithmetic in float32 and n = 2^bits − 1:

    s  = max((max − min) / n, 1e-7), negative unless |min| > |max|
    e  = the extreme of larger magnitude: min if |min| > |max|, else max
    q₀ = rint(e / s);  where it is zero b = 0, elsewhere s = e / q₀ and b = e
    q  = clip(rint((w − b) / s), 0, n)

So one extreme is exact and zero is a point of the grid (q = −q₀), at the price of the other. One
bit has no room for that: there s is positive and b = min. Only after the codes are found are s
and b rounded to their stored type.

**w = s · q**, signed codes of the codec `blockwise`. There is a code more below zero than above, and the extreme e takes it:
s = −e / 2^(bits − 1), negative where e is positive, rounded to its stored type; codes are the nearest.

Both leave nothing to weigh: importance is taken, and changes nothing.
"""

from __future__ import annotations

import numpy as np

from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.affine import Affine
from flyweight.codecs.blockwise import Blockwise, block_extremes
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import column_weights
from flyweight.foundation.dtypes import DType
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers.quantizer import Quantizer

_SMALLEST_SCALE = np.float32(1e-7)


def _fill(array: Array, codec: Affine | Blockwise, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    if inputs is not None:
        column_weights(inputs.importance, spec)  # refuses what is none
    if isinstance(codec, Blockwise):
        return _fill_signed(array, codec, spec)
    rows = codec.finite_rows(spec, array)
    scale, bias = _grid(*codec.extremes(rows), codec.levels)
    stored = codec.representable(scale, bias)
    return codec.store(spec, codec.nearest_codes(rows, scale, bias), *stored)


def _takes(codec: Codec) -> bool:
    if isinstance(codec, Blockwise):
        return codec.is_symmetric
    return isinstance(codec, Affine) and codec.form == "scale_bias"


anchored = Quantizer("anchored", _takes, _fill)


def _fill_signed(array: Array, codec: Blockwise, spec: TensorSpec) -> Parts:
    if not spec.size:
        return codec.encode(spec, array)
    blocking = codec.blocking(spec)
    values = blocking.to_block_order(astype(np.asarray(array), DType.F32.numpy).reshape(blocking.shape))
    low, high = block_extremes(values, blocking.block_size)
    far = np.where(-low >= high, low, high)
    scale = astype(-far / (1 << codec.bits - 1), codec.layout(spec)["scale"].dtype.numpy)
    return codec.store_nearest(spec, values, scale, np.zeros(scale.shape))


def _grid(low: Array, high: Array, levels: int) -> tuple[Array, Array]:
    """Scale and bias of each group."""
    with np.errstate(over="ignore"):
        step = np.maximum((high - low) / np.float32(levels), _SMALLEST_SCALE)
        if levels == 1:
            return step, low
        below = np.abs(low) > np.abs(high)
        far, step = np.where(below, low, high), np.where(below, step, -step)
        steps = np.rint(far / step)
        return np.divide(far, steps, out=step, where=steps != 0), np.where(steps != 0, far, np.float32(0))
