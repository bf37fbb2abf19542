"""The quantizers' inner loops: the codes of a uniform grid, what it loses, and the steps of half-quadratic quantization."""

from __future__ import annotations

from flyweight.kernels.dispatch import F32, F64, U8, Array, check, running


def _check_groups(values: Array, *each: tuple[str, Array], levels: int) -> None:
    check("values", values, F32, (None, None))
    if not 1 <= levels <= 255:
        raise ValueError(f"levels must be 1 to 255, not {levels}")
    for label, array in each:
        check(label, array, F32, (1, values.shape[1]))


def _check_weights(values: Array, by: Array) -> None:
    check("by", by, F32, (None, values.shape[1]))
    if len(by) not in (0, len(values)):
        raise ValueError(f"by must have a row for each of the {len(values)} of the values, or none")


def grid_codes(values: Array, scale: Array, offset: Array, group: int, biased: bool, levels: int, out: Array) -> None:
    """The nearest codes. values: f32 (rows, columns), scale and offset: f32 (rows, groups), out: u8 (rows, columns)."""
    check("values", values, F32, (None, None))
    if group < 1 or not 1 <= levels <= 255:
        raise ValueError(f"group must be 1 or more and levels 1 to 255, not {group} and {levels}")
    rows, columns = values.shape
    for label, array in (("scale", scale), ("offset", offset)):
        check(label, array, F32, (rows, -(-columns // group)))
    check("out", out, U8, (rows, columns), written=True)
    running["grid_codes"](values, scale, offset, group, biased, levels, out)


def grid_loss(values: Array, by: Array, scale: Array, offset: Array, biased: bool, levels: int, loss: Array) -> None:
    """Σ by · (w − ŵ)² of each column, the differences in f32, the sum in f64.

    values: f32 (n, groups), by: f32 (n or 0, groups), scale and offset: f32 (1, groups), loss: f64 (1, groups).
    """
    _check_groups(values, ("scale", scale), ("offset", offset), levels=levels)
    _check_weights(values, by)
    check("loss", loss, F64, (1, values.shape[1]), written=True)
    running["grid_loss"](values, by, scale, offset, biased, levels, loss)


def grid_sums(
    values: Array, by: Array, scale: Array, offset: Array, biased: bool, levels: int, centre: int, sums: Array
) -> None:
    """Σ by, by · w, by · q, by · w · q and by · q² of each column, q = code − centre. sums: f64 (5, groups)."""
    _check_groups(values, ("scale", scale), ("offset", offset), levels=levels)
    _check_weights(values, by)
    check("sums", sums, F64, (5, values.shape[1]), written=True)
    running["grid_sums"](values, by, scale, offset, biased, levels, centre, sums)


def hqq_codes(values: Array, t: Array, z: Array, levels: int, out: Array) -> None:
    """The codes of each column. values: f32 (n, groups), t and z: f32 (1, groups), out: u8 (n, groups)."""
    _check_groups(values, ("t", t), ("z", z), levels=levels)
    check("out", out, U8, values.shape, written=True)
    running["hqq_codes"](values, t, z, levels, out)


def hqq_round(values: Array, by: Array, t: Array, z: Array, beta: float, levels: int, error: Array, mean: Array) -> None:
    """Σ by · |w − ŵ| and Σ by · (q − (w − e) · t) of each column: error and mean, f32 (1, groups)."""
    _check_groups(values, ("t", t), ("z", z), levels=levels)
    _check_weights(values, by)
    for label, array in (("error", error), ("mean", mean)):
        check(label, array, F32, (1, values.shape[1]), written=True)
    running["hqq_round"](values, by, t, z, beta, levels, error, mean)
