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


def quantize_few(x: Array, in_byte: int = 1) -> tuple[Array, Array]:
    """Codes and what each counts, (n, columns): code = rint(x · (127 / peak)), scale = peak / 127 of every four columns.

    The four are those that a lane of the form's products adds up: neighbours, or where a byte has two or four codes (`in_byte`)
    every second or fourth column.
    A peak whose inverse is infinite gives zeros; one that is not finite gives zeros and a NaN scale.
    """
    order = _LANES[in_byte]
    fours = x.reshape(len(x), -1, 32)[:, :, order].reshape(len(x), -1, 4)
    codes, scale = _quantized(fours, 127)
    back = np.argsort(order)
    apart = (codes, np.repeat(scale[:, :, None], 4, axis=2))
    codes, scale = (part.reshape(len(x), -1, 32)[:, :, back].reshape(x.shape) for part in apart)
    return codes, scale


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
