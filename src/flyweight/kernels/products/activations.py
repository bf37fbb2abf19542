"""What is done to activations before and between products: normalised, rounded to whole numbers, gated."""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import Array

__all__ = ["ACTIVATIONS", "normalize", "quantize_few", "quantize_many"]


def normalize(x: Array, gain: Array | None, eps: float) -> Array:
    """x · gain / √(mean x² + eps), or x where there is no gain."""
    if gain is None:
        return x
    mean = np.mean(np.square(x), axis=1, keepdims=True, dtype=np.float32)
    return np.asarray(x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * gain)


_LANES = {1: np.arange(32), 2: np.arange(32).reshape(16, 2).T.ravel(), 4: np.arange(32).reshape(8, 4).T.ravel()}
"""The columns of 32 in the order in which a form takes them apart, by the codes that share a byte of it."""


MOST, FEWEST = 127, 124
"""Steps from zero to the peak of four activations: any number of these."""


def quantize_few(x: Array, in_byte: int = 1) -> tuple[Array, Array]:
    """Codes and what each counts, (n, columns): code = rint(x · (count · (1 / peak))), scale = peak · (1 / count) of every four
    columns, by the count that leaves the least sum of squared errors, the greatest of equal ones.

    The four are those that a lane of the form's products adds up: neighbours, or where a byte has two or four codes (`in_byte`)
    every second or fourth column.
    A peak too small for 127 / peak gives zeros; one that is not finite gives zeros and a NaN scale.
    """
    order = _LANES[in_byte]
    fours = x.reshape(len(x), -1, 32)[:, :, order].reshape(len(x), -1, 4)
    codes, scale = _nearest(fours)
    back = np.argsort(order)
    apart = (codes, np.repeat(scale[:, :, None], 4, axis=2))
    codes, scale = (part.reshape(len(x), -1, 32)[:, :, back].reshape(x.shape) for part in apart)
    return codes, scale


@np.errstate(all="ignore")
def _nearest(fours: Array) -> tuple[Array, Array]:
    """Codes (n, fours, 4) and scales (n, fours)."""
    peak = np.abs(fours).max(axis=2, initial=0)
    inverse = np.float32(1) / peak
    finite = np.isfinite(peak)
    fits = finite & np.isfinite(np.float32(MOST) * inverse)
    kept = np.where(fits[:, :, None], fours, np.float32(0))
    codes, scale, least = np.zeros_like(fours), np.zeros_like(peak), np.zeros_like(peak)
    for count in map(np.float32, range(MOST, FEWEST - 1, -1)):
        steps, own_scale = np.where(fits, count * inverse, np.float32(0)), peak * (np.float32(1) / count)
        own = np.rint(kept * steps[:, :, None])
        error = np.zeros_like(peak)
        for off in np.moveaxis(kept - own * own_scale[:, :, None], 2, 0):
            error += off * off
        nearer = (error < least) | (count == MOST)
        codes, scale, least = (
            np.where(nearer[:, :, None], own, codes), np.where(nearer, own_scale, scale), np.where(nearer, error, least),
        )  # fmt: skip
    return codes.astype(np.int16), np.where(fits, scale, np.where(finite, np.float32(0), np.float32(np.nan)))


def quantize_many(x: Array) -> tuple[Array, Array]:
    """The same in two bytes for 32 columns, 16256 being 127 · 128: code = rint(x · (16256 / peak)), scale = peak / 16256."""
    runs = x.reshape(len(x), -1, 32)
    codes, scale = _quantized(runs, 127 * 128)
    return codes.reshape(x.shape), np.repeat(scale, 32, axis=1)


def _quantized(groups: Array, most: int) -> tuple[Array, Array]:
    """Codes of groups (n, groups, columns of one) with so many steps from zero to their peak, and the step."""
    count = np.float32(most)
    peak = np.abs(groups).max(axis=2, initial=0)
    with np.errstate(all="ignore"):
        steps = count / peak
        unfit, fits = ~np.isfinite(peak), np.isfinite(peak) & np.isfinite(steps)
        whole = np.where(fits[:, :, None], np.rint(groups * steps[:, :, None]), np.float32(0))
    scale = np.where(fits, peak / count, np.where(unfit, np.float32(np.nan), np.float32(0)))
    return whole.astype(np.int16), scale.astype(np.float32)


def silu(z: Array) -> Array:
    return _sigmoid_times(z, z)


def gelu_tanh(z: Array) -> Array:
    """½z·(1 + tanh u) = z / (1 + e^(−2u)), u = √(2/π)·(z + 0.044715·z³)."""
    return _sigmoid_times(z, np.float32(1.5957691216) * (z + np.float32(0.044715) * z * z * z))


def _sigmoid_times(z: Array, t: Array) -> Array:
    """z / (1 + e^−t); what |t| > 87 would add is below 2⁻¹²⁰ of z."""
    return np.asarray(z / (np.float32(1) + np.exp(-np.clip(t, np.float32(-87), np.float32(87)))))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}
