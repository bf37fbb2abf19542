"""Differences of two arrays: taken, measured, selected by magnitude, stored and added.

All arrays are one row. A magnitude is the 31 lower bits of an f32: they are in the order of what they stand for. Places are
flat positions in an array, ascending; `first` is the position at which a range of it begins.
"""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import F32, F64, U8, U16, U32, U64, Array, check, check_stream, is_bf16
from flyweight.kernels.registry import kernel

__all__ = [
    "add_at", "add_signs", "difference", "drop_at", "error_sums", "insert_at", "keep_largest", "magnitude_counts",
    "magnitude_sums", "nibble_levels", "pack_nibbles",
]  # fmt: skip

I64 = np.dtype(np.int64)
_LANES = 16


def _wide(values: Array) -> Array:
    return (values.astype(U32) << 16).view(F32) if values.dtype == U16 else values


def _magnitudes(delta: Array) -> Array:
    magnitudes: Array = delta[0].view(U32) & 0x7FFFFFFF
    return magnitudes


@kernel
def _difference(base: Array, tuned: Array, out: Array) -> None:
    out[...] = _wide(tuned) - _wide(base)


@kernel
@np.errstate(all="ignore")
def _error_sums(reference: Array, values: Array, out: Array) -> None:
    """Every sum is eight of every eighth, then theirs in order."""
    x, y = _wide(reference), values
    error = x - y
    for sum_of, array in enumerate((error, x, y)):
        lanes = np.zeros((-(-array.shape[1] // 8), 8))
        lanes.reshape(-1)[: array.shape[1]] = array[0]
        total = 0.0
        for lane in np.add.reduce(lanes * lanes, axis=0).tolist():
            total += lane
        out[0, sum_of] = total
    largest = _magnitudes(error).max(initial=0)
    out[0, 3:] = largest.view(F32), np.count_nonzero(error)


@kernel
def _magnitude_counts(delta: Array, low: int, shift: int, counts: Array, largest: Array) -> None:
    magnitudes = _magnitudes(delta)
    largest[...] = max(int(largest[0, 0]), int(magnitudes.max(initial=0)))
    counter = np.minimum(magnitudes[magnitudes >= low].astype(np.int64) - low >> shift, counts.shape[1] - 1)
    counts[0] += np.bincount(counter, minlength=counts.shape[1]).astype(U64)


@kernel
def _keep_largest(delta: Array, threshold: int, first: int, places: Array, values: Array, state: Array, rest: Array) -> None:
    magnitudes, ties = _magnitudes(delta), int(state[0, 1])
    keep = magnitudes > threshold
    tied = np.flatnonzero(magnitudes == threshold)[:ties]
    keep[tied] = True
    kept = np.flatnonzero(keep)
    places[0, : len(kept)], values[0, : len(kept)] = kept + first, delta[0, kept]
    state[0] = len(kept), ties - len(tied)
    others = delta[0, ~keep]
    rest[0] = others.min(initial=rest[0, 0]), others.max(initial=rest[0, 1])


def _rows_of(count: int, first: int, columns: int) -> list[slice]:
    """The part of a range, which begins at column `first`, that lies in each row."""
    return [slice(max(start, 0), min(start + columns, count)) for start in range(-first, count, columns)] if count else []


@kernel
def _magnitude_sums(delta: Array, first: int, columns: int, sums: Array) -> None:
    """Sixteen sums of every sixteenth, then theirs in order."""
    for row, part in enumerate(_rows_of(delta.shape[1], first, columns)):
        size = part.stop - part.start
        lanes = np.zeros(-(-size // _LANES) * _LANES)
        lanes[:size] = np.abs(delta[0, part])
        total = 0.0
        for lane in np.add.reduce(lanes.reshape(-1, _LANES), axis=0).tolist():
            total += lane
        sums[0, row] += total


@kernel
def _add_signs(packed: Array, first: int, columns: int, scales: Array, values: Array) -> None:
    count = values.shape[1]
    sign = np.where(np.unpackbits(packed[0], count=count), np.float32(1), np.float32(-1))
    values[0] += sign * scales[0, (np.arange(count) + first) // columns]


@kernel
def _add_at(places: Array, first: int, addends: Array, values: Array) -> None:
    values[0, places[0] - first] += addends[0]


def _others(places: Array, first: int, size: int) -> Array:
    others = np.ones(size, np.bool_)
    others[places[0] - first] = False
    return others


@kernel
def _drop_at(codes: Array, places: Array, first: int, out: Array) -> None:
    out[0] = codes[0, _others(places, first, codes.shape[1])]


@kernel
def _insert_at(rest: Array, places: Array, first: int, inserted: Array, out: Array) -> None:
    out[0, _others(places, first, out.shape[1])] = rest[0]
    out[0, places[0] - first] = inserted[0]


@kernel
def _pack_nibbles(codes: Array, out: Array) -> None:
    out[0] = codes[0, ::2] << 4
    out[0, : codes.shape[1] // 2] |= codes[0, 1::2] & 15


@kernel
def _nibble_levels(packed: Array, levels: Array, skip: int, out: Array) -> None:
    codes = np.stack([packed[0] >> 4, packed[0] & 15], axis=1).reshape(-1)
    out[0] = levels[0, codes[skip : skip + out.shape[1]]]


# Checked --------------------------------------------------------------------------------------


def _check_places(places: Array, first: int, size: int) -> None:
    check("places", places, I64, (1, None))
    at = places[0]
    if first < 0 or (len(at) and not (first <= at[0] and at[-1] < first + size and (at[1:] > at[:-1]).all())):
        raise ValueError(f"places must ascend from {first} to below {first + size}")


def _check_rows(label: str, each: Array, count: int, first: int, columns: int) -> None:
    if not 0 <= first < columns < 1 << 62:
        raise ValueError(f"a range must begin in one of the {columns} columns, not at {first}")
    rows = (first + count - 1) // columns + 1 if count else 0
    check(label, each, F64 if label == "sums" else F32, (1, rows), written=label == "sums")


def difference(base: Array, tuned: Array, out: Array) -> None:
    """tuned − base, both f32 or both bf16, as f32."""
    check("out", out, F32, (1, None), written=True)
    narrow = is_bf16(base)
    for label, array in (("base", base), ("tuned", tuned)):
        check(label, array, base.dtype if narrow else F32, out.shape)
    _difference.run(*((base.view(U16), tuned.view(U16)) if narrow else (base, tuned)), out)


def error_sums(reference: Array, values: Array, out: Array) -> None:
    """How far values, f32, are from a reference, f32 or bf16. For each difference e, rounded to f32,

        out, f64 (1, 5)    Σe², Σ reference², Σ values², the greatest |e|, how many e are not zero

    Squares are exact, so a sum of n is within (n / 8 + 7) · 2^-53 of itself. The greatest is infinite or NaN where anything is
    that is not finite, or not finite once subtracted; then the others mean nothing.
    """
    check("values", values, F32, (1, None))
    narrow = is_bf16(reference)
    check("reference", reference, reference.dtype if narrow else F32, values.shape)
    check("out", out, F64, (1, 5), written=True)
    _error_sums.run(reference.view(U16) if narrow else reference, values, out)


def magnitude_counts(delta: Array, low: int, shift: int, counts: Array, largest: Array) -> None:
    """Count magnitudes from `low` on: each of counts, u64, has 1 << shift of them, the last also all beyond.

    largest, u32 (1, 1), becomes the greatest magnitude where that is greater.
    """
    check("delta", delta, F32, (1, None))
    if delta.shape[1] >= 1 << 32:
        raise ValueError(f"a range must have less than 2^32 values, not {delta.shape[1]}")
    check("counts", counts, U64, (1, None), written=True)
    check("largest", largest, U32, (1, 1), written=True)
    if not (0 <= low < 1 << 31 and 0 <= shift < 31 and 1 <= counts.shape[1] < 1 << 32):
        raise ValueError(f"{counts.shape[1]} counters cannot begin at {low} with {shift} bits each")
    _magnitude_counts.run(delta, low, shift, counts, largest)


def keep_largest(delta: Array, threshold: int, first: int, places: Array, values: Array, state: Array, rest: Array) -> None:
    """The values above the threshold, and the first of those at it.

    places, i64, and values, f32, have the length of delta and are filled from the start; state, u64 (1, 2), has how many are
    kept and, before and after, how many at the threshold still may be. rest, f32 (1, 2), becomes the least and the greatest of
    the others where that goes beyond what it has.
    """
    check("delta", delta, F32, (1, None))
    if not (0 <= threshold < 1 << 31 and first >= 0):
        raise ValueError(f"there is no threshold {threshold} or no place {first}")
    for label, array, dtype, count in (
        ("places", places, I64, delta.shape[1]),
        ("values", values, F32, delta.shape[1]),
        ("state", state, U64, 2),
        ("rest", rest, F32, 2),
    ):
        check(label, array, dtype, (1, count), written=True)
    _keep_largest.run(delta, threshold, first, places, values, state, rest)


def magnitude_sums(delta: Array, first: int, columns: int, sums: Array) -> None:
    """Add to sums, f64 (1, rows), the magnitudes in each row that the range lies in; it begins at column `first`."""
    check("delta", delta, F32, (1, None))
    _check_rows("sums", sums, delta.shape[1], first, columns)
    _magnitude_sums.run(delta, first, columns, sums)


def add_signs(packed: Array, first: int, columns: int, scales: Array, values: Array) -> None:
    """Add the row's scale, f32 (1, rows), where a bit is set, and subtract it elsewhere; high bits come first in packed, u8."""
    check("values", values, F32, (1, None), written=True)
    check("packed", packed, U8, (1, None))
    check_stream(1, values.shape[1], packed.shape[1])
    _check_rows("scales", scales, values.shape[1], first, columns)
    _add_signs.run(packed, first, columns, scales, values)


def add_at(places: Array, first: int, addends: Array, values: Array) -> None:
    """Add addends, f32, to the values at the places, i64."""
    check("values", values, F32, (1, None), written=True)
    _check_places(places, first, values.shape[1])
    check("addends", addends, F32, places.shape)
    _add_at.run(places, first, addends, values)


def drop_at(codes: Array, places: Array, first: int, out: Array) -> None:
    """The codes, u8, that are not at the places, i64."""
    check("codes", codes, U8, (1, None))
    _check_places(places, first, codes.shape[1])
    check("out", out, U8, (1, codes.shape[1] - places.shape[1]), written=True)
    _drop_at.run(codes, places, first, out)


def insert_at(rest: Array, places: Array, first: int, inserted: Array, out: Array) -> None:
    """inserted, f32, at the places, i64, and rest, f32, in order where there is none."""
    check("out", out, F32, (1, None), written=True)
    _check_places(places, first, out.shape[1])
    check("rest", rest, F32, (1, out.shape[1] - places.shape[1]))
    check("inserted", inserted, F32, places.shape)
    _insert_at.run(rest, places, first, inserted, out)


def pack_nibbles(codes: Array, out: Array) -> None:
    """Codes below 16, u8, two a byte, the first in the high half; the last byte of an odd number has zero in its low half."""
    check("codes", codes, U8, (1, None))
    check("out", out, U8, (1, -(-codes.shape[1] // 2)), written=True)
    _pack_nibbles.run(codes, out)


def nibble_levels(packed: Array, levels: Array, skip: int, out: Array) -> None:
    """levels, f32 (1, 16), of the codes of packed, u8, from code `skip` on, which is 0 or 1."""
    check("out", out, F32, (1, None), written=True)
    check("levels", levels, F32, (1, 16))
    if skip not in (0, 1):
        raise ValueError(f"skip must be 0 or 1, not {skip}")
    codes = out.shape[1] + skip if out.shape[1] else 0
    check("packed", packed, U8, (1, -(-codes // 2)))
    _nibble_levels.run(packed, levels, skip, out)
