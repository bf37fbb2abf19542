"""How long a weight takes: t = max(FLOP / peak, bytes / bandwidth), and one dispatch for a program of many layers.

Bandwidth is the weight-stream rate where it was measured, else that of the roofline fit. What is not known is left out, and
the estimate says so; where neither rate is known there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flyweight.targets.ane.facts import rates
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.fact import Fact


@dataclass(frozen=True, slots=True)
class Estimate:
    seconds: float | None
    limit: str = ""
    """What takes the time: weights, arithmetic."""
    facts: tuple[Fact[Any], ...] = ()


def layer_time(engine: Engine, flops: int, nbytes: int) -> Estimate:
    """One use of a weight, without the dispatch."""
    bandwidth = engine.read(rates.WEIGHT_STREAM)
    if not bandwidth.known:
        bandwidth = engine.read(rates.FITTED_BANDWIDTH)
    peak, utilization = engine.read(rates.COMPUTE), engine.read(rates.UTILIZATION)
    facts = tuple(fact for fact in (bandwidth, peak, utilization) if fact.known)
    if bandwidth.value is None:
        return Estimate(None, "", (bandwidth,))
    moving = nbytes / bandwidth.value
    if peak.value is None:
        return Estimate(moving, "weights", facts)
    share = 1.0
    if utilization.value is not None and flops:
        full, exponent = utilization.value
        share = min(1.0, (flops / full) ** exponent)
    computing = flops / (peak.value * share)
    return Estimate(max(moving, computing), "weights" if moving >= computing else "arithmetic", facts)


def dispatch_time(engine: Engine) -> Fact[float]:
    return engine.read(rates.DISPATCH)


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How much faster a stack of layers becomes whose weights move in a share of their dense bytes."""

    most: float
    """If the stream is all that takes time."""
    least: float | None
    """If everything else that a dense stack waits for stays; None where no dense stack was measured."""
    facts: tuple[Fact[Any], ...] = ()


def speed_up(engine: Engine, byte_share: float) -> SpeedUp:
    """Between the two lies what was measured: dense weights of a stack move more slowly than the stream allows."""
    stream, dense = engine.read(rates.WEIGHT_STREAM), engine.read(rates.DENSE_STREAM)
    if stream.value is None or dense.value is None:
        return SpeedUp(1 / byte_share, None)
    streaming = dense.value / stream.value  # of the time of the dense stack
    return SpeedUp(1 / byte_share, 1 / (1 - streaming + streaming * byte_share), (stream, dense))
