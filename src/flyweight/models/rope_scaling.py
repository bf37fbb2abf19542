"""Scaling of rotary position embeddings in its canonical form, `rope_scaling` of config.json.

    linear     factor
    yarn       factor, original_max_position_embeddings, beta_fast, beta_slow, attention_factor, mscale …
    longrope   long_factor and short_factor, one number for each pair of rotated dimensions
    llama3     factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
    divisors   divisors, one number for each pair; config.json has no such kind, a dialect that stores them has

llama3 divides the frequency f_j = θ^(−2j/d) of each pair by a divisor that follows from the wavelength w = 2π/f, the original
context L, and the factors low < high: 1 where w < L/high, `factor` where w > L/low, and in between
1 / ((1 − s)/factor + s), s = (L/w − low)/(high − low).
"""

from __future__ import annotations

from math import log, pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from flyweight.foundation.errors import UnsupportedError
from flyweight.models.checked_record import Record

if TYPE_CHECKING:
    from flyweight.models.family import Family

Scaling = dict[str, Any]

DIVISORS = "divisors"
LLAMA3 = {"factor": None, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The numbers of llama3, with Meta's values."""
LONGROPE_LISTS = ("long_factor", "short_factor")

_ORIGINAL = "original_max_position_embeddings"
_REQUIRED = {"linear": ("factor",), "yarn": ("factor", _ORIGINAL)}
_OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "extrapolation_factor")}
_OFF_AT_0 = {"yarn": ("mscale", "mscale_all_dim"), "longrope": ("attention_factor",)}
_BESIDE_SCALING = ("rope_theta", "partial_rotary_factor", _ORIGINAL)
"""What transformers 5 keeps in the same table."""


def read(config: Record, family: Family, *, context: int, rotary: int) -> Scaling | None:
    """The scaling that the settings ask for; its values checked, its unknown keys kept."""
    given = config.table("rope_scaling")
    if given is None:
        return None
    name = given.get("rope_type") or given.get("type") or "default"
    given.get("type")  # the older spelling; both may be there
    if name == "default":
        return None
    kind = family.scalings.get(str(name), "")
    if not kind:
        raise UnsupportedError(
            f"RoPE scaling '{str(name)[:80]}' of a {family.model_type} model is not supported", code="E_ROPE",
            file=config.file, hint=f"supported: {', '.join(dict.fromkeys(family.scalings.values()))}",
        )  # fmt: skip
    scaling: Scaling = {"rope_type": kind}
    for key in _REQUIRED.get(kind, ()):
        scaling[key] = given.integer(key, context) if key == _ORIGINAL else given.number(key)
    for key in _OPTIONAL.get(kind, ()):
        if key in given:
            scaling[key] = given.number(key)
        given.get(key)  # null is as good as absent
    for key in _OFF_AT_0.get(kind, ()):
        if key in given:
            scaling[key] = given.number(key) if given.get(key) != 0 else 0
    if kind == "llama3":
        for key, default in LLAMA3.items():
            scaling[key] = given.integer(key, default) if isinstance(default, int) else given.number(key, default)
        if not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
            given.fail("high_freq_factor", "more than low_freq_factor")
    for key in LONGROPE_LISTS if kind == "longrope" else ():
        factors = given.items(key, (int, float))
        if len(factors) != rotary // 2:
            given.fail(key, f"{rotary // 2} numbers")
        if not all(1e-18 <= factor <= 1e18 for factor in factors):
            given.fail(key, "numbers of 1e-18 to 1e18")
        scaling[key] = [float(factor) for factor in factors]
    return scaling | {key: value for key, value in given.unused().items() if key not in _BESIDE_SCALING}


def divisors(scaling: Scaling, *, theta: float, rotary: int) -> np.ndarray[Any, Any]:
    """What llama3 divides the frequencies by, f32 (rotary / 2)."""
    if scaling["rope_type"] == DIVISORS:
        return np.asarray(scaling[DIVISORS], np.float32)
    factor, low, high, original = (scaling[key] for key in LLAMA3)
    wavelength = 2 * pi * theta ** (np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    smooth = (original / wavelength - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    divided = np.where(wavelength < original / high, 1.0, np.where(wavelength > original / low, factor, between))
    return divided.astype(np.float32)


def longrope_attention(context: int, original: int) -> float:
    """What longrope multiplies cos and sin by, where it does not say: it grows with how far the context is stretched."""
    stretch = context / original
    return sqrt(1 + log(stretch) / log(original)) if stretch > 1 else 1.0
