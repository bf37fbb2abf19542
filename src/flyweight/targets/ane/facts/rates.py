"""How fast targets are: roofline fits, weight-stream rates, and what skipping zeros was measured to save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flyweight.targets.ane.facts.engine_targets import PerTarget, Target
from flyweight.targets.ane.facts.fact import Fact, inferred, measured

_T, _G, _MS = 1e12, 1e9, 1e-3

COMPUTE: PerTarget[float] = PerTarget(
    "peak rate in FLOP/s",
    targets={
        "H13": measured(3.25 * _T, "guide ch.18"),
        "H14": measured(7.3 * _T, "ANEForge", "at full utilization: min(1, (FLOP / 1.8e10)^0.38) of it in smaller layers"),
        "H17": measured(8.9 * _T, "guide ch.18"),
    },
)
FITTED_BANDWIDTH: PerTarget[float] = PerTarget(
    "bandwidth of the roofline fit in B/s",
    targets={
        "H13": measured(9.0 * _G, "guide ch.18", "of activations and weights together; weights alone stream faster"),
        "H14": measured(48 * _G, "ANEForge"),
        "H17": measured(57 * _G, "guide ch.18"),
    },
)
DISPATCH: PerTarget[float] = PerTarget(
    "time of a dispatch in s",
    targets={
        "H13": measured(0.23 * _MS, "guide ch.18"),
        "H14": measured(0.10 * _MS, "ANEForge"),
        "H17": measured(0.11 * _MS, "guide ch.18"),
    },
)
WEIGHT_STREAM: PerTarget[float] = PerTarget(
    "weight-stream rate in B/s",
    targets={
        "H13": measured(48 * _G, "guide ch.25", "the ceiling; up to 51 elsewhere"),
        "H14": measured(48 * _G, "ANEForge"),
        "H16": measured(67 * _G, "M6 study", "on the M4"),
        "H17": measured(108 * _G, "ANEForge", "up to 145 elsewhere"),
        "H18": inferred(150 * _G, "M6 study", "measured on the M6, whose target is a variant of H18"),
    },
)
DENSE_STREAM: PerTarget[float] = PerTarget(
    "rate at which dense weights of a stack move in B/s",
    targets={"H13": measured(29 * _G, "guide ch.25", "six convolutions; the ceiling is higher because each layer also waits")},
)

UTILIZATION: PerTarget[tuple[float, float]] = PerTarget(
    "FLOP of full utilization, and the exponent below", targets={"H14": measured((1.8e10, 0.38), "ANEForge")}
)


class SkippedZeros(NamedTuple):
    density: float
    time: float
    """Of the dense layer's, where the array is the limit."""


ZERO_SKIP_TIMES: Mapping[str, Fact[tuple[SkippedZeros, ...]]] = {
    "H16": measured((SkippedZeros(0.5, 0.69), SkippedZeros(0.25, 0.45), SkippedZeros(0.1, 0.33)), "M6 study", "on the M4"),
    "H18": inferred(
        (SkippedZeros(0.5, 0.66), SkippedZeros(0.25, 0.42), SkippedZeros(0.1, 0.36)),
        "M6 study",
        "on the M6, whose target is a variant of H18",
    ),
}
SPARSE_FROM: Fact[float] = measured(
    1 / 7,
    "M6 study",
    "the compiler chooses the sparse format above this share of zeros; zeros of a dense constant stay as they are",
).named("share of zeros that makes a kernel sparse")
WINOGRAD_LOSS: Fact[str] = measured(
    "5 to 15 % slower at 50 % zeros, faster only from 75 %", "M6 study", "a pruned 3×3 loses Winograd"
).named("pruned 3×3 kernels")


def rate_facts(target: Target) -> tuple[Fact[Any], ...]:
    tables: tuple[PerTarget[Any], ...] = (COMPUTE, FITTED_BANDWIDTH, DISPATCH, WEIGHT_STREAM, DENSE_STREAM, UTILIZATION)
    return tuple(table.of(target) for table in tables)
