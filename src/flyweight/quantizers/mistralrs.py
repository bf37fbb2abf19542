"""`mistralrs`: the bytes that mistral.rs writes when it quantizes a model on a CPU.

    affine        s = (max − min) / n, 1 where the range is under 1e-12; b = min; q = round((w − b) / s); n = 2^bits − 1
    fp8_scalar    t = 416 · (1 / max|w|), at most 416; q = E4M3(w · t), all of it in bf16; scale = 1 / t
    f8q8          s = max|w| / 127; q = round(w · (1 / s)); d = E4M3(416 · s)
    mxfp4_split   e = ⌊log2(max|w| / 6)⌋, 0 for zeros; q = E2M1(w · 2^−e), the larger of two equally near
    q8_k          t = −127 / x, x the first of largest magnitude; q = round(t · w); d = 1 / t
    hqq           the quantizer `hqq`
    q4_0 q4_1 q5_0 q5_1 q8_0 q8_1     the codec's own encoder

Arithmetic is float32, halves are rounded away from zero, and numbers are rounded to their stored type only after the codes
are found. Most of these lose more than the codec's own encoder, which is for everyone who does not need the same bytes. The K
types are not here: mistral.rs searches for scales in a way of its own. docs/decisions/0181 has the figures.

Nothing here depends on importance: it is taken, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.affine import Affine
from flyweight.codecs.casts import astype
from flyweight.codecs.codec import column_weights
from flyweight.codecs.f8q8 import TOP, F8q8
from flyweight.codecs.floats import Fp8Scalar, Mxfp4Split
from flyweight.codecs.ggml import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q8_K, GgmlBlocks
from flyweight.codecs.hqq import Hqq
from flyweight.codecs.value_checks import require_finite
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers.half_quadratic import hqq
from flyweight.quantizers.quantizer import Quantizer, chunks

F = np.float32
_BF16 = DType.BF16.numpy
_ALIKE = np.ones((1, 1), F)


def _affine(array: Array, codec: Affine, spec: TensorSpec) -> Parts:
    layout, rows = codec.layout(spec), codec.rows(spec, array, keep=DType.BF16)
    span = codec.span(rows.shape[1])
    packed = codec.packed_rows(layout["codes"], len(rows))
    scale, bias = (np.empty((len(rows), -(-rows.shape[1] // span)), F) for _ in range(2))
    kernels.encode_afq(rows, codec.bits, span, packed, scale, bias)
    require_finite(not np.isnan(scale).any())
    for row in np.flatnonzero((bias == 0).any(axis=1)):  # a zero is −0 where the group has no other; of both, either may be
        positive = np.logical_or.reduceat(rows[row].view(f"u{rows.itemsize}") == 0, np.arange(0, rows.shape[1], span))
        bias[row, (bias[row] == 0) & ~positive] = F(-0.0)
    return codec.packed_parts(layout, packed, *codec.representable(scale, bias))


def _fp8_scalar(array: Array, codec: Fp8Scalar, spec: TensorSpec) -> Parts:
    peak = codec.peak(spec, array).astype(_BF16)
    if np.isinf(peak):
        raise UnsupportedError("the weights are too large for bf16, in which mistral.rs quantizes", code="E_RANGE")
    with np.errstate(divide="ignore", over="ignore"):
        inverse = (F(1) / peak.astype(F)).astype(_BF16).astype(F)
        scale = np.minimum((TOP * inverse).astype(_BF16).astype(F), TOP)
    rows = np.asarray(array).reshape(spec.rows, spec.columns)
    codes = np.empty(rows.shape, np.uint8)
    for part, _ in chunks(rows, _ALIKE):
        narrow = astype(astype(np.ascontiguousarray(rows[part]), DType.F32.numpy), _BF16)
        product = astype(astype(narrow, DType.F32.numpy) * scale, _BF16)
        kernels.fp8_codes(product, np.ones((len(product), 1), F), spec.columns, False, False, codes[part])
    return codec.store(spec, codes, F(1) / scale, scale)


def _f8q8(array: Array, codec: F8q8, spec: TensorSpec) -> Parts:
    parts = codec.allocate(spec)
    for values, peaks, blocks in codec.runs(spec, array, parts):
        step = peaks / F(127)
        first = np.empty(step.shape, np.uint8)
        kernels.fp8_codes(step * TOP, np.ones_like(step), 1, False, False, first)
        with np.errstate(divide="ignore", over="ignore"):
            kernels.f8q8_encode(values, first, np.where(step != 0, F(1) / step, F(0)), blocks)
    return parts


def _mxfp4(array: Array, codec: Mxfp4Split, spec: TensorSpec) -> Parts:
    layout = codec.layout(spec)
    values = astype(np.asarray(array), DType.F32.numpy).reshape(-1, 32)
    peaks = np.empty((len(values), 1), F)
    kernels.magnitudes(values, 32, peaks)
    require_finite(np.isfinite(peaks).all())
    with np.errstate(divide="ignore"):
        log = np.floor(np.log2((peaks / F(6)).astype(np.float64)).astype(F))
    exponent = np.where(peaks > 0, np.clip(log, -127, 127), F(0)).astype(np.int32)
    codes = np.empty((len(values), 16), np.uint8)
    kernels.mxfp4_codes(values, np.ldexp(F(1), -exponent), codes)
    scale = (exponent + 127).astype(np.uint8)
    return {"codes": codes.reshape(layout["codes"].shape), "scale": scale.reshape(layout["scale"].shape)}


def _q8_k(array: Array, codec: GgmlBlocks, spec: TensorSpec) -> Parts:
    blocks = np.zeros(codec.layout(spec)["blocks"].shape, np.uint8)
    flat = blocks.reshape(-1, codec.block_bytes)
    values = astype(np.asarray(array), DType.F32.numpy).reshape(-1, codec.block_size)
    require_finite(np.isfinite(values).all())
    for part, _ in chunks(values, _ALIKE):
        some, to = values[part], flat[part]
        peak = np.take_along_axis(some, np.abs(some).argmax(axis=1, keepdims=True), axis=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inverse = F(-127) / peak
            steps = np.clip(np.nan_to_num(inverse * some), -128, 127)
            whole = np.trunc(steps)
            codes = (whole + np.trunc(F(2) * (steps - whole))).astype(np.int8)
            scale = np.where(peak != 0, F(1) / inverse, F(0)).astype("<f4")
        codes[peak[:, 0] == 0] = 0
        to[:, 0:4] = scale.view(np.uint8)
        to[:, 4:260] = codes.view(np.uint8)
        to[:, 260:] = codes.reshape(-1, 16, 16).sum(axis=2, dtype="<i2").view(np.uint8).reshape(len(some), 32)
    return {"blocks": blocks}


_FILLS: dict[type[Codec], Callable[[Array, Any, TensorSpec], Parts]] = {
    Affine: _affine,
    Fp8Scalar: _fp8_scalar,
    F8q8: _f8q8,
    Mxfp4Split: _mxfp4,
    Q8_K: _q8_k,
    Hqq: lambda array, codec, spec: hqq(array, codec, spec),
    **dict.fromkeys((Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1), lambda array, codec, spec: codec.encode(spec, array)),
}
_AFQ_BITS = (2, 3, 4, 6, 8)


def _takes(codec: Codec) -> bool:
    if isinstance(codec, Affine):
        return codec.form == "scale_bias" and codec.packing == "little" and codec.axis == -1 and codec.bits in _AFQ_BITS
    return type(codec) in _FILLS


def _fill(array: Array, codec: Codec, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    if inputs is not None:
        column_weights(inputs.importance, spec)  # refuses what is none
    return _FILLS[type(codec)](array, codec, spec)


mistralrs = Quantizer("mistralrs", _takes, _fill)
