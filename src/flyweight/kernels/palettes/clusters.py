"""Points in several dimensions: the nearest entry of a table, and the sums of the clusters that so arise."""

from __future__ import annotations

import os

import numpy as np

from flyweight.kernels.checks import F32, F64, U8, Array, check
from flyweight.kernels.registry import kernel

CLUSTER_CHUNK = 1 << 14
"""Points whose sums are one block of `palette_cluster_sums`, whatever number of threads adds them up."""

PALETTE_THREADS = min(os.cpu_count() or 1, 8)
"""Threads that share the work on one tensor, as far as no other tensor has them."""


@kernel
def _palette_nearest_vector(points: Array, table: Array, threads: int, out: Array) -> None:
    """The first entry at the least squared distance; where none is finite, 0."""
    out[:, 0] = _nearest(points, table)[0]


@kernel
def _palette_cluster_sums(points: Array, weights: Array, table: Array, threads: int, out: Array) -> None:
    """The sums of weight, weight · coordinates and weight · squared distance, float64, in order, of each entry's points."""
    entries, vector = table.shape
    out[...] = 0
    for chunk, start in enumerate(range(0, len(points), CLUSTER_CHUNK)):
        some = points[start : start + CLUSTER_CHUNK]
        code, distance = _nearest(some, table)
        mass = weights[0, start : start + CLUSTER_CHUNK].astype(np.float64) if weights.size else np.ones(len(some))
        own = out[chunk * entries : (chunk + 1) * entries]
        np.add.at(own[:, 0], code, mass)
        for axis in range(vector):
            np.add.at(own[:, 1 + axis], code, mass * some[:, axis])
        np.add.at(own[:, 1 + vector], code, mass * distance)


def _nearest(points: Array, table: Array) -> tuple[Array, Array]:
    """Codes and squared distances; the squares are summed in order, rounded to f32 one by one."""
    least = np.full(len(points), np.inf, np.float32)
    codes = np.zeros(len(points), np.uint8)
    for code, entry in enumerate(table):
        apart = points - entry
        distance = apart[:, 0] * apart[:, 0]
        for axis in range(1, points.shape[1]):
            distance += apart[:, axis] * apart[:, axis]
        nearer = distance < least
        least[nearer] = distance[nearer]
        codes[nearer] = code
    return codes, least


# Checked --------------------------------------------------------------------------------------


def _check_points(points: Array, table: Array, threads: int) -> None:
    check("points", points, F32, (None, None))
    if not 1 <= points.shape[1] <= 16:
        raise ValueError(f"points have 1 to 16 coordinates, not {points.shape[1]}")
    check("table", table, F32, (None, points.shape[1]))
    if not 1 <= len(table) <= 256:
        raise ValueError(f"a table of vectors has 1 to 256 entries, not {len(table)}")
    if not 1 <= threads <= 256:
        raise ValueError(f"threads must be 1 to 256, not {threads}")


def palette_nearest_vector(points: Array, table: Array, threads: int, out: Array) -> None:
    """The code of the nearest entry. points: f32 (n, vector), table: f32 (entries, vector), out: u8 (n, 1)."""
    _check_points(points, table, threads)
    check("out", out, U8, (len(points), 1), written=True)
    _palette_nearest_vector.run(points, table, threads, out)


def palette_cluster_sums(points: Array, weights: Array, table: Array, threads: int, out: Array) -> None:
    """Weight, weight · point and weight · squared distance, summed for each entry over the points it is nearest to.

    points: f32 (n, vector), weights: f32 (1, n or 0), 0 or more, table: f32 (entries, vector), out: f64 (⌈n / CLUSTER_CHUNK⌉ ·
    entries, vector + 2), a block for each chunk of the points.
    """
    _check_points(points, table, threads)
    check("weights", weights, F32, (1, 0 if isinstance(weights, np.ndarray) and not weights.size else len(points)))
    blocks = -(-len(points) // CLUSTER_CHUNK)
    check("out", out, F64, (blocks * len(table), points.shape[1] + 2), written=True)
    _palette_cluster_sums.run(points, weights, table, threads, out)
