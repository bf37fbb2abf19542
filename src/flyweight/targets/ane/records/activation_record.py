"""The activation lookup record: 33 knots of a function and what surrounds them, and its evaluation.

    0x00  low       inputs are clamped to low … high first; maps that use |x| clamp that
    0x02  high
    0x04  mode      0, or 1 where the map is not `centred`          disputed: the output at `low`
    0x06  scale     knots per unit of the mapped input              disputed: the output at `high`
    0x08  knots     33
    0x4a  tails     slope and intercept below the first knot, slope and intercept above the last
    0x52  map       a 32-bit word; ours: byte 0 the map, byte 1 the binary logarithm of the scale, the others 0
    0x56            43 f16 slots, 86 bytes

Before generation A13 the record has 150 bytes: 32 differences between neighbouring knots follow the knots (inferred).

An input becomes a position among the 32 segments by the map. Its integer part selects a segment, its fraction f interpolates:
k + fl(f · fl(k' − k)), each fl and the sum a rounding to f16. In this arithmetic a record gives, digit for digit, the maximum
errors that were measured on an M6 (docs/formats/ane-records.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

from flyweight.foundation.cursor import Cursor, Readable
from flyweight.foundation.errors import CUT_SHORT, MalformedError, UnsupportedError
from flyweight.targets.ane.records.engine_numbers import Array, Ties, as_engine_reads, round_f16

KNOTS = 33
SEGMENTS = KNOTS - 1
RECORD_BYTES = 86
RECORD_BYTES_BEFORE_A13 = 150
Reading = Literal["seed", "disputed"]
"""What the slots at 0x04 and 0x06 hold. The guide: mode and scale. The M6 study's dumps: the outputs at the clamps."""

LN_2 = 0.693359375  # as f16
LOG2_E = 1.4423828125
_MOST_SCALE = 15


class Map(IntEnum):
    """How an input becomes a position among the knots, and what becomes of the value there. The numbers are ours."""

    CENTRED = 0  # x · scale + 16
    ODD = 1  # |x| · scale; the sign comes back
    QUARTER_WAVE = 2  # |x| / π · scale, folded into a quarter of the period; the sign comes back
    EXP = 3  # n + f = x · log2 e; f · scale; times 2^n
    LOG2 = 4  # x = m · 2^n, m from 1/2 to 1; (m − 1/2) · scale; plus n
    LOG = 5  # as LOG2; times ln 2
    SQRT = 6  # x = m · 4^n, m from 1/2 to 2; (m − 1/2) · scale; times 2^n
    RSQRT = 7  # as SQRT; times 2^−n
    INVERSE = 8  # as LOG2 of |x|; times 2^−n; the sign comes back


_Finish = Callable[[Array], Array]
_OF_MAGNITUDE = (Map.ODD, Map.QUARTER_WAVE, Map.INVERSE)


@dataclass(frozen=True)
class Tails:
    """Straight lines beside the knots."""

    low_slope: float
    low_intercept: float
    high_slope: float
    high_intercept: float


@dataclass(frozen=True)
class ActivationRecord:
    """Every number is one that f16 holds."""

    map: Map
    low: float
    high: float
    log2_scale: int
    knots: tuple[float, ...]
    tails: Tails

    def __post_init__(self) -> None:
        numbers = np.array([self.low, self.high, *self.knots, *_values(self.tails)])
        if len(self.knots) != KNOTS or not 0 <= self.log2_scale <= _MOST_SCALE:
            raise MalformedError(f"an activation record has {KNOTS} knots and a scale of 1 to 2^{_MOST_SCALE}", code=_CODE)
        if np.isnan(numbers).any() or not self.low < self.high:
            raise MalformedError("an activation record holds a NaN, or its clamps are not in order", code=_CODE)
        if not np.isfinite(self.knots).all():
            raise MalformedError("a knot of an activation record is infinite", code=_CODE)
        if not np.array_equal(round_f16(numbers, "even"), numbers):
            raise UnsupportedError("an activation record holds f16 numbers; round them first", code="E_RANGE")

    @property
    def scale(self) -> float:
        return math.ldexp(1.0, self.log2_scale)

    @property
    def ends(self) -> tuple[float, float]:
        """The outputs at the clamps, before what the map does to them: what the disputed reading has in the slots of mode and
        scale."""
        tails = self.tails
        low, high = (
            slope * clamp + intercept if slope else intercept
            for slope, clamp, intercept in (
                (tails.low_slope, self.low, tails.low_intercept),
                (tails.high_slope, self.high, tails.high_intercept),
            )
        )
        return float(round_f16(low)), float(round_f16(high))

    # Bytes

    def slots(self, reading: Reading = "seed") -> tuple[float, float]:
        """What lies at 0x04 and 0x06."""
        return (float(self.map is not Map.CENTRED), self.scale) if reading == "seed" else self.ends

    def to_bytes(self, *, reading: Reading = "seed", deltas: bool = False) -> bytes:
        """86 bytes, or 150 with the deltas of the generations before A13."""
        differences = round_f16(np.diff(self.knots)) if deltas else ()
        halves = [self.low, self.high, *self.slots(reading), *self.knots, *differences, *_values(self.tails)]
        word = int(self.map) | self.log2_scale << 8
        return np.array(halves, "<f2").tobytes() + word.to_bytes(4, "little")

    @classmethod
    def read(cls, source: Readable, *, reading: Reading = "seed") -> ActivationRecord:
        """The inverse of `to_bytes`; which of the two records it is, its size says."""
        if source.size not in (RECORD_BYTES, RECORD_BYTES_BEFORE_A13):
            raise MalformedError(
                f"an activation record has {RECORD_BYTES} bytes, or {RECORD_BYTES_BEFORE_A13} before A13, not {source.size}",
                code=_CODE, file=source.name, hint=CUT_SHORT,
            )  # fmt: skip
        cursor = Cursor(source)
        low, high, *slots = _halves(cursor, 4)
        knots = _halves(cursor, KNOTS)
        differences = _halves(cursor, SEGMENTS) if source.size == RECORD_BYTES_BEFORE_A13 else None
        tails = _halves(cursor, 4)
        word = cursor.u32("the map of an activation record")
        number, log2_scale = word & 0xFF, word >> 8
        if number > max(Map) or log2_scale > _MOST_SCALE:
            raise cursor.malformed(f"{word:#010x} is no map of an activation record", _CODE)
        try:
            record = cls(Map(number), low, high, log2_scale, tuple(knots), Tails(*tails))
        except MalformedError as error:
            raise error.at(file=source.name) from None
        if not _same(slots, record.slots(reading)):
            raise cursor.malformed(
                f"slots 2 and 3 are {slots}, not {record.slots(reading)} as the rest of the record says", _CODE
            )
        if differences is not None and not _same(differences, round_f16(np.diff(knots)).tolist()):
            raise cursor.malformed("the differences between knots are not those of the knots", _CODE)
        return record

    # Values

    def evaluate(self, inputs: Array, ties: Ties = "away") -> Array:
        """The outputs for f16 inputs, as float64 that f16 holds."""
        x = as_engine_reads(inputs)
        magnitude = np.abs(x) if self.map in _OF_MAGNITUDE else x
        clamped = np.clip(magnitude, self.low, self.high)
        with np.errstate(over="ignore", invalid="ignore"):  # a stranger's record may hold any tails
            position, finish = self._position(clamped, ties)
            values = finish(self._interpolated(clamped, position, ties))
        return np.where(np.signbit(x), -values, values) if self.map in _OF_MAGNITUDE else values

    def _interpolated(self, clamped: Array, position: Array, ties: Ties) -> Array:
        knots, tails = np.array(self.knots), self.tails
        segment = np.clip(np.floor(position), 0, SEGMENTS - 1).astype(np.intp)
        fraction = np.clip(position, 0, SEGMENTS) - segment
        rise = round_f16(fraction * round_f16(np.diff(knots), ties)[segment], ties)
        values = round_f16(knots[segment] + rise, ties)
        below, above = position < 0, position > SEGMENTS
        values = np.where(below, _line(clamped, tails.low_slope, tails.low_intercept, ties), values)
        return np.where(above, _line(clamped, tails.high_slope, tails.high_intercept, ties), values)

    def _position(self, x: Array, ties: Ties) -> tuple[Array, _Finish]:
        """Where among the knots inputs lie, and what is done with the values found there."""
        if self.map in (Map.CENTRED, Map.ODD):
            return x * self.scale + (SEGMENTS // 2 if self.map is Map.CENTRED else 0), _unchanged
        if self.map is Map.QUARTER_WAVE:
            turned = x / np.pi * self.scale
            quarter = np.floor(turned / SEGMENTS)
            rest = turned - quarter * SEGMENTS
            negative = quarter % 4 >= 2
            return np.where(quarter % 2 == 1, SEGMENTS - rest, rest), lambda values: np.where(negative, -values, values)
        if self.map is Map.EXP:
            exponent = as_engine_reads(round_f16(x * LOG2_E, ties))
            whole = np.floor(exponent)
            return (exponent - whole) * self.scale, lambda values: round_f16(np.ldexp(values, whole.astype(np.intp)), ties)
        return self._range_reduced(x, ties)

    def _range_reduced(self, x: Array, ties: Ties) -> tuple[Array, _Finish]:
        """What is not above 0 has no mantissa: its output is the intercept of the low tail."""
        positive = x > 0
        mantissa, exponent = np.frexp(np.where(positive, x, 0.5))
        if self.map in (Map.SQRT, Map.RSQRT):
            odd = exponent % 2
            mantissa, exponent = np.ldexp(mantissa, odd), (exponent - odd) // 2
        position = np.where(positive, (mantissa - 0.5) * self.scale, -1.0)

        def finish(values: Array) -> Array:
            if self.map in (Map.LOG2, Map.LOG):
                sums = round_f16(np.where(positive, values + exponent, values), ties)
                return sums if self.map is Map.LOG2 else round_f16(as_engine_reads(sums) * LN_2, ties)
            shift = exponent if self.map is Map.SQRT else -exponent
            return round_f16(np.where(positive, np.ldexp(values, shift), values), ties)

        return position, finish


_CODE = "E_ACTIVATION"


def _values(tails: Tails) -> tuple[float, float, float, float]:
    return tails.low_slope, tails.low_intercept, tails.high_slope, tails.high_intercept


def _same(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """The same f16 numbers, their signs included: 0 is not -0."""
    return np.array(found, "<f2").tobytes() == np.array(wanted, "<f2").tobytes()


def _halves(cursor: Cursor, count: int) -> list[float]:
    raw = cursor.take(2 * count, "an activation record")
    numbers: list[float] = np.frombuffer(raw, "<f2").astype(np.float64).tolist()
    return numbers


def _line(x: Array, slope: float, intercept: float, ties: Ties) -> Array:
    return round_f16(round_f16(slope * x, ties) + intercept, ties) if slope else np.full(x.shape, intercept)


def _unchanged(values: Array) -> Array:
    return values
