"""What is done to activations before and between products: normalised, rounded to int8, gated."""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import Array

__all__ = ["ACTIVATIONS", "normalize", "quantize_activations"]


def normalize(x: Array, gain: Array | None, eps: float) -> Array:
    """x · gain / √(mean x² + eps), or x where there is no gain."""
    if gain is None:
        return x
    mean = np.mean(np.square(x), axis=1, keepdims=True, dtype=np.float32)
    return np.asarray(x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * gain)


def quantize_activations(x: Array) -> tuple[Array, Array]:
    """Codes (n, columns) and scales (n, columns / 32): code = rint(x · (127 / peak)), scale = peak / 127.

    A peak whose inverse is infinite gives zeros; one that is not finite gives zeros and a NaN scale.
    """
    runs = x.reshape(len(x), -1, 32)
    peak = np.abs(runs).max(axis=2, initial=0)
    with np.errstate(all="ignore"):
        steps = np.float32(127) / peak
        unfit, fits = ~np.isfinite(peak), np.isfinite(peak) & np.isfinite(steps)
        whole = np.where(fits[:, :, None], np.rint(runs * steps[:, :, None]), np.float32(0))
    scale = np.where(fits, peak / np.float32(127), np.where(unfit, np.float32(np.nan), np.float32(0)))
    return whole.astype(np.int8).reshape(x.shape), scale.astype(np.float32)


def silu(z: Array) -> Array:
    return _sigmoid_times(z, z)


def gelu_tanh(z: Array) -> Array:
    """½z·(1 + tanh u) = z / (1 + e^(−2u)), u = √(2/π)·(z + 0.044715·z³)."""
    return _sigmoid_times(z, np.float32(1.5957691216) * (z + np.float32(0.044715) * z * z * z))


def _sigmoid_times(z: Array, t: Array) -> Array:
    """z / (1 + e^−t); what |t| > 87 would add is below 2⁻¹²⁰ of z."""
    return np.asarray(z / (np.float32(1) + np.exp(-np.clip(t, np.float32(-87), np.float32(87)))))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}
