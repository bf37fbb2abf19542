"""Knots and tails of functions whose tables are not published: minimax fits.

The compiler fits the knots of gelu and silu too, by a rule nobody has published, so these records differ from its own.
`fit_knots` finds the 33 knots of the least maximum error by Lawson's iteration: least squares, weights multiplied by the error,
again and again. `polish` then moves f16 knots by single ulps as long as that lowers the maximum error of what is evaluated.
`fit_tail` finds the line beside the last knot, ending where it reaches the function's limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flyweight.targets.ane.records.activation_record import KNOTS, SEGMENTS, ActivationRecord
from flyweight.targets.ane.records.engine_numbers import Array, round_f16

Function = Callable[[Array], Array]

_PER_SEGMENT = 32
_ROUNDS = 200
_CLAMPS = 64  # tried, an eighth of a segment apart
_SLOPES = 201


def fit_knots(exact: Function, places: Array) -> Array:
    """The values at `places`, evenly spaced, whose interpolation has the least maximum error."""
    positions = np.linspace(0, SEGMENTS, SEGMENTS * _PER_SEGMENT + 1)
    wanted = exact(np.interp(positions, np.arange(KNOTS), places))
    hats = np.maximum(0, 1 - np.abs(positions[:, None] - np.arange(KNOTS)))  # row: the shares of the knots in a value
    weights, best, least = np.ones(len(positions)), exact(places), np.inf
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)[:, None]
        knots = np.linalg.lstsq(hats * root, wanted * root[:, 0], rcond=None)[0]
        error = np.abs(hats @ knots - wanted)
        if error.max() < least:
            best, least = knots, error.max()
        weights *= error
        weights /= weights.sum()
        weights = np.maximum(weights, 1e-12)  # every knot keeps a value
    return best


def polish(record: ActivationRecord, exact: Function, inputs: Array) -> ActivationRecord:
    """The record after moves by one ulp, each of a knot beside the maximum error, until none lowers that error."""
    wanted = exact(inputs)

    def worst(candidate: ActivationRecord) -> tuple[float, int]:
        error = np.abs(candidate.evaluate(inputs) - wanted)
        return float(error.max()), int(error.argmax())

    least, at = worst(record)
    while True:
        segment = int(np.clip(np.floor(inputs[at] * record.scale) + SEGMENTS // 2, 0, SEGMENTS - 1))
        moved = [_moved(record, knot, way) for knot in (segment, segment + 1) for way in (-1, 1)]
        found = min(((*worst(candidate), candidate) for candidate in moved), key=lambda each: each[0])
        if found[0] >= least:
            return record
        least, at, record = found


def _moved(record: ActivationRecord, knot: int, way: int) -> ActivationRecord:
    knots = list(record.knots)
    knots[knot] = float(np.nextafter(np.float16(knots[knot]), np.float16(way * np.inf)))
    return replace(record, knots=tuple(knots))


def fit_tail(exact: Function, edge: float, step: float, limit: float) -> tuple[float, float]:
    """Clamp and slope of the line beside the knot at `edge`. A negative step goes left.

    The line ends at the clamp with the value `limit`; of such lines it has the least maximum error, from the knot to where the
    function is at its limit.
    """
    clamps = edge + step / 8 * np.arange(1, _CLAMPS + 1)
    x = edge + step / 8 * np.linspace(0, _CLAMPS, 8 * _CLAMPS + 1)
    to_knot = (limit - exact(np.array(edge))) / (clamps - edge)
    slopes = to_knot[:, None] * np.linspace(0.5, 1.5, _SLOPES)
    lines = limit + slopes[..., None] * (x - clamps[:, None, None])
    beyond = (x - clamps[:, None, None]) * np.sign(step) > 0
    error = np.abs(np.where(beyond, limit, lines) - exact(x)).max(axis=-1)
    at_clamp, at_slope = np.unravel_index(error.argmin(), error.shape)
    return float(round_f16(clamps[at_clamp])), float(round_f16(slopes[at_clamp, at_slope]))
