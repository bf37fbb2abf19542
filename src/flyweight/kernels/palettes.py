"""Tables of values: look-up, nearest entry, and the sums and cuts that optimal tables need."""

from __future__ import annotations

import numpy as np

from flyweight.kernels import reference_palette
from flyweight.kernels.dispatch import F32, F64, I32, U8, Array, check, running

HISTOGRAM = (1 << 32 - reference_palette.BIN_SHIFT, 2)
"""The shape of the histogram that `palette_histogram` fills."""


def _check_tables(entries: int, count: int, run: int, start: int, tables: int) -> None:
    if not 2 <= entries <= 256 or entries & (entries - 1):
        raise ValueError(f"a table has 2, 4, … 256 entries, not {entries}")
    if run < 1 or start < 0 or -(-(start + count) // run) > tables:
        raise ValueError(f"{tables} tables for {run} elements each do not reach element {start + count - 1}")


def palette_decode(codes: Array, tables: Array, vector: int, run: int, start: int, out: Array) -> None:
    """The values of codes; `run` neighbours share a table, and the first code is number `start`.

    codes: u8 (1, n), tables: f32 (tables, entries · vector), out: f32 (1, n · vector).
    """
    check("codes", codes, U8, (1, None))
    check("tables", tables, F32, (None, None))
    if vector < 1 or tables.shape[1] % vector:
        raise ValueError(f"tables of {tables.shape[1]} values do not hold vectors of {vector}")
    _check_tables(tables.shape[1] // vector, codes.shape[1], run, start, len(tables))
    check("out", out, F32, (1, codes.shape[1] * vector), written=True)
    running["palette_decode"](codes, tables, vector, run, start, out)


def palette_nearest(values: Array, midpoints: Array, run: int, start: int, out: Array) -> None:
    """The code of the nearest entry of an ascending table, given by the midpoints of its neighbours.

    values: f32 (1, n), midpoints: f32 (tables, entries − 1), out: u8 (1, n); run and start as in `palette_decode`.
    """
    check("values", values, F32, (1, None))
    check("midpoints", midpoints, F32, (None, None))
    _check_tables(midpoints.shape[1] + 1, values.shape[1], run, start, len(midpoints))
    check("out", out, U8, values.shape, written=True)
    running["palette_nearest"](values, midpoints, run, start, out)


def palette_nearest_vector(points: Array, table: Array, out: Array) -> None:
    """The code of the nearest entry. points: f32 (n, vector), table: f32 (entries, vector), out: u8 (n, 1)."""
    check("points", points, F32, (None, None))
    if not 1 <= points.shape[1] <= 16:
        raise ValueError(f"points have 1 to 16 coordinates, not {points.shape[1]}")
    check("table", table, F32, (None, points.shape[1]))
    _check_tables(len(table), 0, 1, 0, 0)
    check("out", out, U8, (len(points), 1), written=True)
    running["palette_nearest_vector"](points, table, out)


def palette_histogram(values: Array, weights: Array, out: Array) -> None:
    """Adds weight and weight · value to each value's bin. values: f32 (1, n), weights: f32 (1, n or 0), out: f64 HISTOGRAM."""
    check("values", values, F32, (1, None))
    check("weights", weights, F32, (1, None if isinstance(weights, np.ndarray) and not weights.size else values.shape[1]))
    check("out", out, F64, HISTOGRAM, written=True)
    running["palette_histogram"](values, weights, out)


def palette_cuts(mass: Array, moment: Array, best: Array, out: Array) -> None:
    """Where points on a line are best cut into 1, 2, … k clusters.

    mass and moment: f64 (1, points + 1), running sums from 0; best: f64 (2, points + 1), scratch; out: i32 (k, points + 1).
    """
    check("mass", mass, F64, (1, None))
    check("moment", moment, F64, mass.shape)
    check("best", best, F64, (2, mass.shape[1]), written=True)
    check("out", out, I32, (None, mass.shape[1]), written=True)
    if not 1 <= len(out) < mass.shape[1] <= 1 << 31:
        raise ValueError(f"{mass.shape[1] - 1} points cannot be cut into {len(out)} clusters")
    running["palette_cuts"](mass, moment, best, out)


def palette_centres(values: Array, weights: Array, order: Array, room: Array, cuts: Array, out: Array) -> None:
    """The means of the best clusters of each row of values, ascending; the last repeats where there are fewer values.

    values: f32 (tables, n), weights: f32 (tables or 0, n), 0 or more, out: f64 (tables, k); scratch: order: u64 (2, n),
    room: f64 (6, n + 1), cuts: i32 (k, n + 1).
    """
    check("values", values, F32, (None, None))
    tables, count = values.shape
    check("weights", weights, F32, (0 if isinstance(weights, np.ndarray) and not len(weights) else tables, count))
    check("order", order, np.dtype(np.uint64), (2, count), written=True)
    check("room", room, F64, (6, count + 1), written=True)
    check("out", out, F64, (tables, None), written=True)
    check("cuts", cuts, I32, (out.shape[1], count + 1), written=True)
    if not out.shape[1] or count >= 1 << 31:
        raise ValueError(f"{count} values cannot be cut into {out.shape[1]} clusters")
    running["palette_centres"](values, weights, order, room, cuts, out)
