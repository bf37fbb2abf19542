"""Rotary position embeddings: the angle of each pair of dimensions at each position, and its scaling variants.

angle[p, j] = p · f_j        f_j = θ^(−2j/d), j = 0 … d/2 − 1
linear      f_j / factor
llama3      f_j / divisor_j, as in `models.rope_scaling`
yarn        f_j where the wavelength is short, f_j / factor where it is long, a ramp between the pairs that turn
            `beta_fast` and `beta_slow` times over the original context; cos and sin × attention factor
longrope    f_j / short_j, or f_j / long_j in a context longer than the original one; cos and sin × attention factor
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, log, pi
from typing import Any

import numpy as np

from flyweight.foundation.errors import UnsupportedError
from flyweight.models import Config
from flyweight.models.rope_scaling import DIVISORS, divisors, longrope_attention

Array = np.ndarray[Any, Any]


class Rotary:
    """Tables cos and sin, f32 (positions, d/2), which grow with the positions asked for."""

    def __init__(self, config: Config, context: int, *, local: bool = False) -> None:
        theta = config.values["rope_local_base_freq"] if local else config.theta
        scaling = None if local else config.scaling
        plain = theta ** (-np.arange(0, config.rotary, 2) / config.rotary)
        self.frequencies, self.factor = _scaled(plain, scaling or {}, config, theta, context)
        self._tables = (np.empty((0, len(plain)), np.float32),) * 2

    def tables(self, positions: int) -> tuple[Array, Array]:
        """cos and sin of at least the first `positions`."""
        cos, sin = self._tables  # both at once: another thread may be replacing them
        if positions > len(cos):
            angles = np.outer(np.arange(max(positions, 2 * len(cos), 256)), self.frequencies)
            cos, sin = ((f(angles) * self.factor).astype(np.float32) for f in (np.cos, np.sin))
            self._tables = cos, sin
        return cos, sin


def _scaled(plain: Array, scaling: Mapping[str, Any], config: Config, theta: float, context: int) -> tuple[Array, float]:
    kind = scaling.get("rope_type")
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind in ("llama3", DIVISORS):
        return plain / divisors(dict(scaling), theta=theta, rotary=config.rotary), 1.0
    if kind == "yarn":
        return _yarn(plain, scaling, theta)
    if kind == "longrope":
        original = int(config.values.get("original_max_position_embeddings") or config.context)
        factors = np.asarray(scaling["long_factor" if context > original else "short_factor"])
        return plain / factors, float(scaling.get("attention_factor") or longrope_attention(config.context, original))
    return plain, 1.0


def _yarn(plain: Array, scaling: Mapping[str, Any], theta: float) -> tuple[Array, float]:
    factor, original = float(scaling["factor"]), int(scaling["original_max_position_embeddings"])
    size = 2 * len(plain)
    if theta <= 1:
        raise UnsupportedError(f"yarn needs a RoPE base above 1, not {theta:g}", code="E_ROPE")

    def pair_that_turns(times: float) -> float:
        return size * log(original / (times * 2 * pi)) / (2 * log(theta))

    low = max(floor(pair_that_turns(float(scaling.get("beta_fast", 32)))), 0)
    high = min(ceil(pair_that_turns(float(scaling.get("beta_slow", 1)))), size - 1)
    stretched = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0, 1)
    frequencies = plain * (1 - stretched) + plain / factor * stretched
    if "attention_factor" in scaling:
        return frequencies, float(scaling["attention_factor"])

    def grown(by: float) -> float:
        return 0.1 * by * log(factor) + 1 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return frequencies, grown(float(scaling["mscale"])) / grown(float(scaling["mscale_all_dim"]))
    return frequencies, grown(1.0)
