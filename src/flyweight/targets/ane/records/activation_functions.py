"""The activation functions with a record: where their knots lie, and how far the record is from the truth.

Knots are samples of the function, as the M6 study read them in compiled programs, except for gelu, silu and softplus: the
compiler fits the first two by an unpublished rule, and of softplus nothing is published. Their knots are fitted here
(`activation_fit`). Every record is built in the arithmetic of the engine and compared with the function over every f16 in the
range that the study measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from flyweight.foundation.errors import ArgumentError, nearest
from flyweight.targets.ane.facts.fact import Fact, inferred, measured, unknown
from flyweight.targets.ane.records.activation_fit import Function, fit_knots, fit_tail, polish
from flyweight.targets.ane.records.activation_record import KNOTS, ActivationRecord, Map, Tails
from flyweight.targets.ane.records.engine_numbers import Array, Ties, f16_ulp, round_f16

_M6 = "M6 study"
_FITTED = "fitted by the compiler"


@dataclass(frozen=True)
class Side:
    """A line beside the knots, up to a clamp."""

    slope: float = 0.0
    intercept: float = 0.0
    clamp: float = math.inf


@dataclass(frozen=True)
class ToLimit:
    """The line that ends at the function's limit: from the last knot to a known clamp, or else the one of least error."""

    limit: float
    clamp: float | None = None


@dataclass(frozen=True)
class Activation:
    name: str
    exact: Function
    map: Map
    log2_scale: int
    low: Side | ToLimit
    high: Side | ToLimit
    compared: tuple[float, float]
    """Where errors are measured."""
    knots: Fact[str]
    device_error: Fact[float]
    """The maximum absolute error that was measured on a device, over the same range."""

    @property
    def fitted(self) -> bool:
        """Whether the knots are ours."""
        return self.knots.value in (None, _FITTED)

    @property
    def places(self) -> Array:
        """The inputs at the knots, after the map."""
        numbers = np.arange(KNOTS, dtype=np.float64)
        step = 2.0**-self.log2_scale
        match self.map:
            case Map.CENTRED:
                return (numbers - KNOTS // 2) * step
            case Map.QUARTER_WAVE:
                return numbers * step * np.pi
            case Map.ODD | Map.EXP:
                return numbers * step
            case _:
                return 0.5 + numbers * step

    @property
    def at_knots(self) -> Function:
        """The function of the mapped input that the knots sample."""
        return {Map.EXP: np.exp2, Map.LOG: np.log2}.get(self.map, self.exact)

    def inputs(self) -> Array:
        """Every f16 of the range in which errors are measured, as float64."""
        every = np.arange(65536, dtype=np.uint16).view(np.float16)
        low, high = self.compared
        return np.unique(every[(every >= low) & (every <= high)].astype(np.float64))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    return np.array([math.erf(value) for value in np.ravel(x)]).reshape(np.shape(x))


def _gelu(x: Array) -> Array:
    values: Array = 0.5 * x * (1 + _erf(x / math.sqrt(2)))
    return values


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _device(error: float, note: str = "") -> Fact[float]:
    return measured(error, _M6, note).named("maximum error on an M6")


_SAMPLED = measured("samples of the function", _M6, "read in programs compiled for h18g")
_WITHOUT_LN_2 = inferred("samples of the function", _M6, "the record of log, without its factor ln 2")
_ITS_FIT = measured(_FITTED, _M6, "by a rule that is not published; ours is minimax")
_NOTHING = unknown("no source describes it")
_NOT_MEASURED = unknown("not measured").named("maximum error on an M6")
_AT_ZERO = Side(clamp=0.0)
_AS_INPUT = Side(slope=1.0)

_TABLE = (
    Activation("sigmoid", _sigmoid, Map.CENTRED, 1, ToLimit(0, -9.9375), ToLimit(1, 8.3203125), (-12, 12), _SAMPLED,
               _device(3.355e-3)),
    Activation("tanh", np.tanh, Map.ODD, 3, _AT_ZERO, Side(intercept=1), (-6, 6), _SAMPLED, _device(1.613e-3)),
    Activation("erf", _erf, Map.ODD, 4, _AT_ZERO, ToLimit(1), (-4, 4), _SAMPLED, _device(8.642e-4)),
    Activation("sin", np.sin, Map.QUARTER_WAVE, 6, _AT_ZERO, Side(), (-8, 8), _SAMPLED, _device(6.329e-4)),
    Activation("exp", np.exp, Map.EXP, 5, Side(clamp=-math.inf), Side(), (-12, 10), _SAMPLED, _device(100.8)),
    Activation("log", np.log, Map.LOG, 6, Side(0, -math.inf, 0), Side(), (2**-10, 1000), _SAMPLED, _device(6.638e-3)),
    Activation("log2", np.log2, Map.LOG2, 6, Side(0, -math.inf, 0), Side(), (2**-10, 1000), _WITHOUT_LN_2, _NOT_MEASURED),
    Activation("sqrt", np.sqrt, Map.SQRT, 4, _AT_ZERO, Side(intercept=math.inf), (2**-10, 1000), _SAMPLED, _device(1.810e-2)),
    Activation("rsqrt", _rsqrt, Map.RSQRT, 4, Side(0, math.inf, 0), Side(), (2**-6, 1000), _SAMPLED, _device(8.139e-3)),
    Activation("inverse", np.reciprocal, Map.INVERSE, 6, Side(0, math.inf, 0), Side(), (2**-6, 1000), _SAMPLED,
               _device(0.4375, "of Core ML's op, which adds 0.0001 to its input")),
    Activation("gelu", _gelu, Map.CENTRED, 2, ToLimit(0), _AS_INPUT, (-8, 8), _ITS_FIT, _device(6.159e-3)),
    Activation("silu", _silu, Map.CENTRED, 1, ToLimit(0), _AS_INPUT, (-12, 12), _ITS_FIT, _device(1.491e-2)),
    Activation("softplus", _softplus, Map.CENTRED, 1, ToLimit(0), _AS_INPUT, (-12, 12), _NOTHING, _NOT_MEASURED),
)  # fmt: skip
ACTIVATIONS: Mapping[str, Activation] = {
    each.name: replace(each, knots=each.knots.named(f"knots of {each.name}")) for each in _TABLE
}


def activation_named(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ArgumentError(
            f"there is no activation record for '{name}'{nearest(name, ACTIVATIONS)}",
            code="E_ACTIVATION",
            hint=f"known: {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[name]


@cache
def build(name: str) -> ActivationRecord:
    """The record of a function, by name."""
    activation = activation_named(name)
    places = activation.places
    values = fit_knots(activation.exact, places) if activation.fitted else activation.at_knots(places)
    knots = round_f16(values, "even")
    low, high = (
        _line(activation, side, float(places[at]), float(knots[at]), way)
        for side, at, way in ((activation.low, 0, -1), (activation.high, -1, 1))
    )
    tails = Tails(low.slope, low.intercept, high.slope, high.intercept)
    record = ActivationRecord(activation.map, low.clamp, high.clamp, activation.log2_scale, tuple(knots.tolist()), tails)
    if activation.fitted:
        inputs = activation.inputs()
        record = polish(record, activation.exact, inputs[(inputs >= places[0]) & (inputs <= places[-1])])
    return record


def _line(activation: Activation, side: Side | ToLimit, edge: float, knot: float, way: int) -> Side:
    if isinstance(side, Side):
        return side
    if side.clamp is None:
        clamp, slope = fit_tail(activation.exact, edge, way * 2.0**-activation.log2_scale, side.limit)
    else:
        clamp, slope = side.clamp, float(round_f16((side.limit - knot) / (side.clamp - edge)))
    return Side(slope, float(round_f16(side.limit - round_f16(slope * clamp))), clamp)


@dataclass(frozen=True)
class ActivationError:
    """How far a record is from its function."""

    max_error: float
    max_error_at: float
    max_ulps: float
    """The maximum error in units of the last place of an f16 at the true value."""
    max_ulps_at: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def error_of(name: str, ties: Ties = "away") -> ActivationError:
    """The maximum errors over every f16 of the range that was measured on the device."""
    activation = activation_named(name)
    inputs = activation.inputs()
    exact = activation.exact(inputs)
    error = np.abs(build(name).evaluate(inputs, ties) - exact)
    ulps = error / f16_ulp(exact)
    at, ulps_at = int(error.argmax()), int(ulps.argmax())
    return ActivationError(float(error[at]), float(inputs[at]), float(ulps[ulps_at]), float(inputs[ulps_at]))
