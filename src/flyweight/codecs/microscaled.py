"""Blocks of 32 FP4 (E2M1) codes under one power of two: what the forms of MXFP4 have in common, whatever their bytes.

    w = 2^(e − 128) · level[code]        e from 0 to 254; codes 0 to 14 from the least level up, which are twice the FP4 values

The sixteenth code of FP4, −0, is that of 0 here. Exponents are u8 (blocks, 1), FP4 codes u8 (blocks, 32).
"""

from __future__ import annotations

import numpy as np

from flyweight.codecs.codec import Array, column_weights
from flyweight.codecs.lines import Powers
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.kernels.blocks.layout import E2M1_VALUES, half_e8m0

BLOCK = 32
_LEVELS, _FIRST = np.unique(E2M1_VALUES, return_index=True)
_CODE_OF = _FIRST.astype(np.uint8)
_MIDPOINTS = (_LEVELS[:-1] + _LEVELS[1:]) / 2
_GREATEST = 254
_TRIED = (0, -1, 1)
"""Exponents around that of nearest rounding, which puts the greatest magnitude of a block at 4 to 8 where 6 is the end."""


def searched(values: Array, nearest: Array, importance: Array, spec: TensorSpec) -> tuple[Array, Array]:
    """Exponents of least weighed error and their nearest codes, for values (blocks, 32) and the exponents of nearest
    rounding. The first of equally good ones."""
    weights = np.tile(column_weights(importance, spec).reshape(-1, BLOCK), (spec.rows, 1))
    best, codes = nearest.copy(), np.zeros(values.shape, np.uint8)
    least = np.full((len(values), 1), np.inf)
    for move in _TRIED:
        exponent = np.clip(nearest.astype(np.int16) + move, 0, _GREATEST).astype(np.uint8)
        scale = half_e8m0(exponent)
        found = np.searchsorted(_MIDPOINTS, values / scale)
        error = values - scale * _LEVELS[found]
        loss = (weights * np.square(error, dtype=np.float64)).sum(axis=1, keepdims=True)
        better = loss < least
        least, best = np.where(better, loss, least), np.where(better, exponent, best)
        codes = np.where(better, _CODE_OF[found], codes)
    return best, codes


def lines_of(exponents: Array, rows: int) -> Powers:
    scale = np.ascontiguousarray(half_e8m0(exponents).reshape(rows, -1).T)
    return Powers(
        _LEVELS[None], BLOCK, scale, np.zeros_like(scale), DType.F32, has_bias=False, least=-128, greatest=_GREATEST - 128
    )


def stored(scale: Array, codes: Array) -> tuple[Array, Array]:
    """Exponents and FP4 codes for scales of lines, (groups, rows), and their codes, (rows, columns)."""
    exponents = np.frexp(scale)[1] - 1 + 128
    return np.ascontiguousarray(exponents.T).astype(np.uint8).reshape(-1, 1), _CODE_OF[codes].reshape(-1, BLOCK)
