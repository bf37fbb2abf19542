"""Four bits a weight on one grid for the whole array, and the largest changes as f16.

    outlier_fraction, n_elements, n_outliers   in the header
    int4_layout    in the header, 1 where it is absent: which weights `packed` has
    outlier_idx    i64 or i32: flat places, ascending
    outlier_vals   f16: the changes there
    scale          f16 (1): a step of the grid
    zero_point     f16 (1): the change that code 0 stands for
    packed         u8: two codes a byte, the first in the high half; layout 1 has none for outliers, in layout 2
                   theirs stand for nothing

Code q stands for q / 15 · (scale · 15) + zero_point, rounded to f32 after every operation. The grid is chosen such that every
change is within half a step of a code, and that a weight that does not change has a code for just that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import ceil, frexp, ldexp
from typing import Any

import numpy as np

from flyweight import kernels
from flyweight.codecs.casts import astype
from flyweight.deltas.header_numbers import refuse_options, require_count, require_share, share_option
from flyweight.deltas.kind import Additive, Array, Elements, Record, StoredArray, require
from flyweight.deltas.largest_changes import BEYOND_F16, Changes, Largest, not_stored
from flyweight.deltas.stored_places import StoredPlaces, not_finite
from flyweight.foundation.tensor import TensorSpec

_F32 = np.dtype(np.float32)
_TOP = 15
_F16_MAX = 65504.0
_SMALLEST_EXPONENT = -24
"""Of the smallest f16 above zero."""


class Int4Delta(Additive):
    strategy = "int4"
    options = frozenset({"outlier_fraction"})
    fields = {
        "outlier_idx": ("int64", "int32"),
        "outlier_vals": ("float16",),
        "scale": ("float16",),
        "zero_point": ("float16",),
        "packed": ("uint8",),
    }

    def __init__(self, spec: TensorSpec, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super().__init__(spec, about, arrays)
        self._indices, self._outliers, self._packed = (arrays[key] for key in ("outlier_idx", "outlier_vals", "packed"))
        require_share(about, "outlier_fraction")
        require_count(about, "n_elements", spec.size)
        require_count(about, "n_outliers", len(self._indices))
        require(
            len(self._outliers) == len(self._indices),
            f"{len(self._outliers)} values are stored for {len(self._indices)} outliers",
        )
        for key in ("scale", "zero_point"):
            require(len(arrays[key]) == 1, f"{key} must be one number, not {len(arrays[key])}")
        layout = about.get("int4_layout", 1)
        require(type(layout) is int and layout in (1, 2), f"int4_layout must be 1 or 2, not {layout!r:.40}")
        self._places = StoredPlaces(self._indices, spec.size)
        self._all_packed = layout == 2
        codes = spec.size - (0 if self._all_packed else len(self._indices))
        require(len(self._packed) == -(-codes // 2), f"{len(self._packed)} bytes are stored for {codes} codes")

    def check(self) -> None:
        self._places.check()

    def complaint(self) -> str | None:
        return not_finite({key: self.arrays[key] for key in ("outlier_vals", "scale", "zero_point")})

    def add(self, start: int, stop: int, values: Array) -> None:
        own = self._places.within(start, stop)
        places = astype(self._indices[own], np.dtype(np.int64)).reshape(1, -1)
        outliers = astype(self._outliers[own], _F32).reshape(1, -1)
        delta = np.empty((1, stop - start), np.float32)
        if self._all_packed:
            self._look_up(start, delta)
            delta[0, places[0] - start] = outliers[0]
        else:
            rest = np.empty((1, stop - start - places.shape[1]), np.float32)
            self._look_up(start - own.start, rest)
            kernels.insert_at(rest, places, start, outliers, delta)
        values += delta[0]

    def _look_up(self, first: int, out: Array) -> None:
        """What the codes from number `first` on stand for."""
        packed = self._packed[first // 2 : -(-(first + out.shape[1]) // 2)] if out.size else self._packed[:0]
        kernels.nibble_levels(packed.reshape(1, -1), self._levels, first % 2, out)

    @cached_property
    def _levels(self) -> Array:
        return levels_of(self.arrays["scale"][:1][0], self.arrays["zero_point"][:1][0])

    @classmethod
    def make(
        cls,
        base: Elements,
        tuned: Elements,
        spec: TensorSpec,
        about: dict[str, Any],
        outlier_fraction: float = 0.01,
        **options: Any,
    ) -> Iterator[Record]:
        refuse_options(cls.strategy, options)
        about["outlier_fraction"] = share_option("outlier_fraction", outlier_fraction)
        count = max(1, int(spec.size * outlier_fraction)) if spec.size else 0
        about["n_elements"], about["n_outliers"] = spec.size, count
        largest = Largest(Changes(base, tuned, spec.size), count)
        yield Record("outlier_idx", "int64", (kept.places[0].copy() for kept in largest))
        yield Record("outlier_vals", "float16", (_as_f16(kept.values[0]) for kept in largest))
        scale, zero_point = grid_for(*largest.rest.tolist()) if spec.size > count else (np.float16(1), np.float16(0))
        yield Record("scale", "float16", [np.array([scale])])
        yield Record("zero_point", "float16", [np.array([zero_point])])
        yield Record("packed", "uint8", _packed(largest, scale, zero_point))


def levels_of(scale: np.float16, zero_point: np.float16) -> Array:
    """What each code stands for, f32 (1, 16)."""
    codes = np.arange(_TOP + 1, dtype=np.float32).reshape(1, -1)
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite
        return np.asarray(codes / np.float32(_TOP) * np.float32(float(scale) * _TOP) + np.float32(zero_point))


def _as_f16(values: Array) -> Array:
    narrow = astype(values, np.dtype(np.float16))
    if not np.isfinite(narrow).all():
        raise not_stored(BEYOND_F16)
    return narrow


def grid_for(least: float, greatest: float) -> tuple[np.float16, np.float16]:
    """Scale and zero point for changes between the two. UnsupportedError where f16 has none."""
    if least == greatest:
        return np.float16(1), _as_f16(np.array([least + 0.0], np.float32))[0]
    if least > 0 or greatest < 0:  # no weight is unchanged
        zero_point = _rounded_down(least)
        return -_rounded_down((float(zero_point) - greatest) / _TOP), zero_point
    # Zero is among the changes, and is to have a code. The multiples of a scale of seven bits are f16 numbers; and for some
    # codes, such as 3 and 7, the arithmetic above comes to just that multiple, whatever the scale.
    unit = ldexp(1.0, max(frexp((greatest - least) / (_TOP + 1))[1] - 7, _SMALLEST_EXPONENT))
    steps = ceil((greatest - least) / (_TOP + 1) / unit)
    while (scale := steps * unit) * _TOP <= _F16_MAX:
        multiples = levels_of(np.float16(scale), np.float16(0))[0]
        for code in range(round(-least / scale), _TOP - round(greatest / scale) + 1):
            zero_point = np.float16(0.0 - code * scale)
            if multiples[code] == code * scale == -zero_point:
                return np.float16(scale), zero_point
        steps += 1
    raise not_stored(BEYOND_F16)


def _rounded_down(value: float) -> np.float16:
    with np.errstate(over="ignore"):
        nearest = np.float16(value)
        rounded = nearest if float(nearest) <= value else np.nextafter(nearest, np.float16(-np.inf))
    if not np.isfinite(rounded):
        raise not_stored(BEYOND_F16)
    return rounded


def _packed(largest: Largest, scale: np.float16, zero_point: np.float16) -> Iterator[Array]:
    step, origin = (np.full((1, 1), number, np.float32) for number in (scale, zero_point))
    single: Array = np.zeros((1, 0), np.uint8)
    """A code that shares its byte with the next range's first."""
    for kept in largest:
        size = kept.delta.shape[1]
        codes = np.empty((1, size), np.uint8)
        kernels.grid_codes(kept.delta, step, origin, size, True, _TOP, codes)
        own = np.empty((1, single.shape[1] + size - kept.places.shape[1]), np.uint8)
        own[:, : single.shape[1]] = single
        kernels.drop_at(codes, kept.places, kept.start, own[:, single.shape[1] :])
        paired = own.shape[1] // 2 * 2
        single = own[:, paired:]
        yield _two_a_byte(own[:, :paired])
    yield _two_a_byte(single)


def _two_a_byte(codes: Array) -> Array:
    packed = np.empty(-(-codes.shape[1] // 2), np.uint8)
    kernels.pack_nibbles(codes, packed.reshape(1, -1))
    return packed
