"""The quantizers' inner loops: the codes of a uniform grid, what it loses, and the steps of half-quadratic quantization.

`grid_*` work on a grid as it is stored, codes 0 to `levels`:

    biased       q = round((w − offset) / scale)     ŵ = scale · q + offset
    otherwise    q = round(w / scale + offset)       ŵ = scale · (q − offset)

halves to even; a scale of zero divides as infinity does. `hqq_*` work on q = round(w · t + z), halves away from zero,
ŵ = (q − z) / t.

All but `grid_codes` take groups as columns, (elements of a group, groups), so that a sum runs down a column in order and
its bits are the same on every machine. `by` weighs the elements; with no rows it weighs all alike.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from flyweight.kernels.checks import F32, F64, U8, Array, check
from flyweight.kernels.registry import kernel

F = np.float32
D = np.float64

SURELY_DENSE = F(0.125)
"""An error this small has no sparse part: |x|^−0.3 / β > |x| for every β up to 14, and HQQ's ends at 10.94."""


def _held(x: Array, top: int) -> Array:
    """Within 0..top; NaN gives 0."""
    return np.where(x > F(0), np.where(x < F(top), x, F(top)), F(0))


def _nearest(w: Array, scale: Array, offset: Array, biased: bool, levels: int) -> Array:
    divisor = np.where(scale != 0, scale, F(np.inf))
    codes: Array = np.rint(_held((w - offset) / divisor if biased else w / divisor + offset, levels))
    return codes


@kernel
def _grid_codes(values: Array, scale: Array, offset: Array, group: int, biased: bool, levels: int, out: Array) -> None:
    span, columns = min(group, values.shape[1]), values.shape[1]
    step, origin = (np.repeat(part, span, axis=1)[:, :columns] for part in (scale, offset))
    out[...] = _nearest(values, step, origin, biased, levels).astype(np.uint8)


def _weight(by: Array, row: int) -> Array | D:
    return by[row].astype(D) if len(by) else D(1)


@kernel
def _grid_loss(values: Array, by: Array, scale: Array, offset: Array, biased: bool, levels: int, loss: Array) -> None:
    loss[...] = 0
    for row, w in enumerate(values):
        q = _nearest(w, scale[0], offset[0], biased, levels)
        made = scale[0] * q + offset[0] if biased else scale[0] * (q - offset[0])
        off = (w - made).astype(D)
        loss[0] += _weight(by, row) * off * off


@kernel
def _grid_sums(
    values: Array, by: Array, scale: Array, offset: Array, biased: bool, levels: int, centre: int, sums: Array
) -> None:
    sums[...] = 0
    for row, w in enumerate(values):
        q = _nearest(w, scale[0], offset[0], biased, levels).astype(D) - D(centre)
        weight, x = _weight(by, row), w.astype(D)
        for total, term in zip(sums, (weight, weight * x, weight * q, weight * x * q, weight * q * q), strict=True):
            total += term


# Half-quadratic -------------------------------------------------------------------------------

_LN2 = 0.6931471805599453
_LOG2 = tuple(2.0 / _LN2 / (2 * k + 1) for k in range(11))
_EXP = tuple(1.0 / factorial(k) for k in range(14))
_ROUND = 1.5 * 2.0**52  # x + this − this is x rounded to nearest even


def power(x: Array) -> Array:
    """x^−0.3 for f32 x > 2^-126 as mistral.rs has it: exp(−0.3 · ln x), each of the three steps rounded to f32.

    By series in double precision and by no library, whose last bits differ between machines.
    """
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)  # x = m · 2^exponent, m from √½ to √2
    m = (bits - (exponent << np.int32(23))).view(np.float32).astype(D)
    s = (m - 1.0) / (m + 1.0)
    series = np.zeros_like(s)
    for c in reversed(_LOG2):
        series = series * (s * s) + c
    log = ((exponent.astype(D) + s * series) * _LN2).astype(np.float32)
    p = (log * F(-0.3)).astype(D)
    whole = (p / _LN2 + _ROUND) - _ROUND
    r = p - whole * _LN2
    series = np.zeros_like(s)
    for c in reversed(_EXP):
        series = series * r + c
    scale = ((whole.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    powered: Array = series.astype(np.float32) * scale
    return powered


def _away(w: Array, t: Array, z: Array, levels: int) -> Array:
    """The codes: halves away from zero, which below zero is held at zero all the same."""
    steps = _held(w * t + z, levels)
    whole = np.trunc(steps)
    codes: Array = whole + np.trunc(F(2) * (steps - whole))
    return codes


@kernel
def _hqq_codes(values: Array, t: Array, z: Array, levels: int, out: Array) -> None:
    for row, w in enumerate(values):
        out[row] = _away(w, t[0], z[0], levels).astype(np.uint8)


@kernel
def _hqq_round(values: Array, by: Array, t: Array, z: Array, inverse: float, levels: int, error: Array, mean: Array) -> None:
    error[...] = mean[...] = 0
    for row, w in enumerate(values):
        q = _away(w, t[0], z[0], levels)
        off = w - (q - z[0]) / t[0]
        size = np.abs(off)
        large = size > SURELY_DENSE
        left = size - F(inverse) * power(np.where(large, size, F(1)))
        sparse = np.where(large & (left > 0), np.copysign(left, off), F(0))
        target = q - (w - sparse) * t[0]
        error[0] += size * by[row] if len(by) else size
        mean[0] += target * by[row] if len(by) else target


# Checked --------------------------------------------------------------------------------------


def _check_groups(values: Array, *each: tuple[str, Array], levels: int) -> None:
    check("values", values, F32, (None, None))
    if not 1 <= levels <= 255:
        raise ValueError(f"levels must be 1 to 255, not {levels}")
    for label, array in each:
        check(label, array, F32, (1, values.shape[1]))


def _check_weights(values: Array, by: Array) -> None:
    check("by", by, F32, (None, values.shape[1]))
    if len(by) not in (0, len(values)):
        raise ValueError(f"by must have a row for each of the {len(values)} of the values, or none")


def grid_codes(values: Array, scale: Array, offset: Array, group: int, biased: bool, levels: int, out: Array) -> None:
    """The nearest codes. values: f32 (rows, columns), scale and offset: f32 (rows, groups), out: u8 (rows, columns)."""
    check("values", values, F32, (None, None))
    if group < 1 or not 1 <= levels <= 255:
        raise ValueError(f"group must be 1 or more and levels 1 to 255, not {group} and {levels}")
    rows, columns = values.shape
    for label, array in (("scale", scale), ("offset", offset)):
        check(label, array, F32, (rows, -(-columns // group)))
    check("out", out, U8, (rows, columns), written=True)
    _grid_codes.run(values, scale, offset, group, biased, levels, out)


def grid_loss(values: Array, by: Array, scale: Array, offset: Array, biased: bool, levels: int, loss: Array) -> None:
    """Σ by · (w − ŵ)² of each column, the differences in f32, the sum in f64.

    values: f32 (n, groups), by: f32 (n or 0, groups), scale and offset: f32 (1, groups), loss: f64 (1, groups).
    """
    _check_groups(values, ("scale", scale), ("offset", offset), levels=levels)
    _check_weights(values, by)
    check("loss", loss, F64, (1, values.shape[1]), written=True)
    _grid_loss.run(values, by, scale, offset, biased, levels, loss)


def grid_sums(
    values: Array, by: Array, scale: Array, offset: Array, biased: bool, levels: int, centre: int, sums: Array
) -> None:
    """Σ by, by · w, by · q, by · w · q and by · q² of each column, q = code − centre. sums: f64 (5, groups)."""
    _check_groups(values, ("scale", scale), ("offset", offset), levels=levels)
    _check_weights(values, by)
    check("sums", sums, F64, (5, values.shape[1]), written=True)
    _grid_sums.run(values, by, scale, offset, biased, levels, centre, sums)


def hqq_codes(values: Array, t: Array, z: Array, levels: int, out: Array) -> None:
    """The codes of each column. values: f32 (n, groups), t and z: f32 (1, groups), out: u8 (n, groups)."""
    _check_groups(values, ("t", t), ("z", z), levels=levels)
    check("out", out, U8, values.shape, written=True)
    _hqq_codes.run(values, t, z, levels, out)


def hqq_round(values: Array, by: Array, t: Array, z: Array, inverse: float, levels: int, error: Array, mean: Array) -> None:
    """Σ by · |w − ŵ| and Σ by · (q − (w − e) · t) of each column: error and mean, f32 (1, groups); `inverse` is 1 / β."""
    _check_groups(values, ("t", t), ("z", z), levels=levels)
    _check_weights(values, by)
    for label, array in (("error", error), ("mean", mean)):
        check(label, array, F32, (1, values.shape[1]), written=True)
    _hqq_round.run(values, by, t, z, inverse, levels, error, mean)
