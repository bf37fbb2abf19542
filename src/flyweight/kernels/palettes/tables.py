"""Tables of values: look-up, nearest entry, and histogram.

Elements belong to tables by turns: element i of a call that starts at `start` has table (start + i) % cycle // run.
"""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import F32, F64, U8, Array, check
from flyweight.kernels.registry import kernel

BIN_SHIFT = 13
"""Bits of an f32 that its bin ignores: sign, 8 bits of exponent and 10 of mantissa stay, enough for any f16 or bf16."""

HISTOGRAM = (1 << 32 - BIN_SHIFT, 2)
"""The shape of the histogram that `palette_histogram` fills."""


@kernel
def _palette_decode(codes: Array, tables: Array, vector: int, run: int, cycle: int, start: int, out: Array) -> None:
    """The `vector` values of each code. Bits of a code above the table's size are dropped."""
    count, entries = codes.shape[1], tables.shape[1] // vector
    owner = (start + np.arange(count)) % cycle // run
    code = codes[0] & np.uint8(entries - 1)
    out.reshape(count, vector)[...] = tables.reshape(-1, entries, vector)[owner, code]


@kernel
def _palette_nearest(values: Array, midpoints: Array, run: int, cycle: int, start: int, out: Array) -> None:
    """How many midpoints of its table (ascending) lie below each value: on a midpoint the lower code; NaN gives 0."""
    owner = (start + np.arange(values.shape[1])) % cycle // run
    for table in np.unique(owner):
        out[0, owner == table] = np.searchsorted(midpoints[table], values[0, owner == table], side="left")
    out[np.isnan(values)] = 0


@kernel
def _palette_histogram(values: Array, weights: Array, out: Array) -> None:
    """Adds each value's weight and weight · value (f64, in order) to its bin; without weights each counts one.

    Bins ascend as the values do; both zeros share one.
    """
    bits = (values[0] + np.float32(0)).view(np.uint32)
    bins = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)) >> BIN_SHIFT
    mass = weights[0].astype(np.float64) if weights.size else np.ones(bins.size)
    np.add.at(out[:, 0], bins, mass)
    np.add.at(out[:, 1], bins, mass * values[0])


# Checked --------------------------------------------------------------------------------------


def _check_entries(entries: int) -> None:
    if not 2 <= entries <= 256 or entries & (entries - 1):
        raise ValueError(f"a table has 2, 4, … 256 entries, not {entries}")


def _check_tables(count: int, run: int, cycle: int, start: int, tables: int) -> None:
    if count and not (run >= 1 and 1 <= cycle <= run * tables and 0 <= start < 1 << 63):
        raise ValueError(f"{tables} tables for {run} elements each do not reach through a cycle of {cycle}")


def palette_decode(codes: Array, tables: Array, vector: int, run: int, cycle: int, start: int, out: Array) -> None:
    """The values of codes, of which the first is number `start`: code i has table i % cycle // run.

    codes: u8 (1, n), tables: f32 (tables, entries · vector), out: f32 (1, n · vector).
    """
    check("codes", codes, U8, (1, None))
    check("tables", tables, F32, (None, None))
    if vector < 1 or tables.shape[1] % vector:
        raise ValueError(f"tables of {tables.shape[1]} values do not hold vectors of {vector}")
    _check_entries(tables.shape[1] // vector)
    _check_tables(codes.shape[1], run, cycle, start, len(tables))
    check("out", out, F32, (1, codes.shape[1] * vector), written=True)
    _palette_decode.run(codes, tables, vector, run, cycle, start, out)


def palette_nearest(values: Array, midpoints: Array, run: int, cycle: int, start: int, out: Array) -> None:
    """The code of the nearest entry of an ascending table, given by the midpoints of its neighbours.

    values: f32 (1, n), midpoints: f32 (tables, entries − 1), out: u8 (1, n); run, cycle and start as in `palette_decode`.
    """
    check("values", values, F32, (1, None))
    check("midpoints", midpoints, F32, (None, None))
    _check_entries(midpoints.shape[1] + 1)
    _check_tables(values.shape[1], run, cycle, start, len(midpoints))
    check("out", out, U8, values.shape, written=True)
    _palette_nearest.run(values, midpoints, run, cycle, start, out)


def palette_histogram(values: Array, weights: Array, out: Array) -> None:
    """Adds weight and weight · value to each value's bin. values: f32 (1, n), weights: f32 (1, n or 0), out: f64 HISTOGRAM."""
    check("values", values, F32, (1, None))
    check("weights", weights, F32, (1, None if isinstance(weights, np.ndarray) and not weights.size else values.shape[1]))
    check("out", out, F64, HISTOGRAM, written=True)
    _palette_histogram.run(values, weights, out)
