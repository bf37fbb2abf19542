"""A matrix of stored weights, checked once."""

from __future__ import annotations

import numpy as np

from flyweight.foundation.ggml_types import GGML_TYPES, ggml_types_with
from flyweight.kernels.checks import F16, F32, U8, U16, U32, Array, is_bf16
from flyweight.kernels.products.stored_matrix import ACROSS, STEPPED, WIDTHS, WOVEN, rows_of
from flyweight.kernels.registry import _native
from flyweight.kernels.weaving import TURNED

FORMS: dict[str, tuple[tuple[str, ...], int, int]] = {
    # the parts of a matrix, and the columns and bytes of a block of the first
    **{name: (("blocks",), GGML_TYPES[name].elements, GGML_TYPES[name].nbytes) for name in ggml_types_with("product")},
    **{f"affine{bits}": (("codes", "scale", "bias"), 32, 4 * bits) for bits in WIDTHS},
    **{form: (("codes", "steps", "scale"), 32, 4 * bits) for form, bits in STEPPED.items()},
    "symmetric8": (("codes", "scale"), 1, 1),
    "tabled4": (("codes", "entries"), 2, 1),
    "tabled2": (("codes", "entries"), 4, 1),
    "palette4": (("codes", "table"), 2, 1),
    "e2m1": (("codes", "scale"), 2, 1),
    "e4m3": (("codes", "scale"), 1, 1),
    "f8q8": (("blocks",), 32, 33),
    "hqq4": (("codes", "scale", "zero"), 1, 1),
    "hqq8": (("codes", "scale", "zero"), 1, 1),
    "woven2": (("codes", "scale", "tables"), 32, 8),
    "woven3": (("codes", "scale", "tables"), 32, 12),
    "woven4": (("codes", "scale", "tables"), 32, 16),
    "f32": (("weights",), 1, 4),
    "f16": (("weights",), 1, 2),
    "bf16": (("weights",), 1, 2),
}
"""The forms a matrix may be stored in."""

FLOATS = {"f32": F32, "f16": F16, "bf16": U16}
TABLED = ("tabled4", "tabled2")
MASKED = (*TABLED, *FLOATS)
"""Forms that may have a mask of blocks to skip."""
SCALES = {F32: "f32", F16: "f16", U16: "bf16", U8: "e8m0"}
SCALED_BY = {"e2m1": (U8,), "e4m3": (F32,)}
"""The types that the scales of a form may have, where they are not f32, f16 and bf16."""


class Matrix:
    """Weights as stored, checked once: (rows, columns), in one of FORMS. Made by `matrix`; m[a:b] are some of its rows,
    where they can be cut out (`has_rows`)."""

    __slots__ = ("block", "columns", "form", "length", "native", "parts", "rows")

    def __init__(self, form: str, parts: tuple[Array, ...], *, length: int = 0, block: int = 0) -> None:
        names, elements, nbytes = FORMS[form]
        self.form, self.parts, self.rows = form, parts, len(parts[0]) * ACROSS.get(form, 1)
        self.length, self.block = length, block
        self.columns = parts[0].shape[1] * parts[0].itemsize // nbytes * elements
        self.native = None
        if _native:
            scale = "steps" if form in STEPPED else SCALES[parts[1].dtype] if "scale" in names else ""
            stored = f"affine{STEPPED[form]}" if form in STEPPED else form
            self.native = _native._Matrix(stored, *(_bytes(part) for part in parts), scale=scale, length=length, block=block)

    @property
    def has_rows(self) -> bool:
        """Whether every part has a row for each of the weights, or one for all."""
        return self.form not in ACROSS and self.form not in WOVEN

    def __getitem__(self, rows: slice) -> Matrix:
        if not self.has_rows:
            raise TypeError(f"a matrix in {self.form} cannot be cut into rows")
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise TypeError("a matrix gives whole rows: m[first:last]")
        first, last, _ = rows.indices(self.rows)
        return Matrix(self.form, tuple(rows_of(self, slice(first, last))), length=self.length, block=self.block)

    def __repr__(self) -> str:
        return f"Matrix({self.form}, {self.rows} × {self.columns})"


def _bytes(part: Array) -> Array:
    """Rows of bytes: what is stored may lie at any address."""
    return part.view(U8) if part.size else np.empty((len(part), part.shape[1] * part.itemsize), U8)


def matrix(form: str, *, length: int = 0, block: int = 0, **arrays: Array) -> Matrix:
    """A matrix of weights in one of FORMS, from the arrays that form has; they are kept, not copied.

    q*, iq4*, mxfp4: `blocks` u8 (rows, bytes). affine2 … affine8: `codes` u8 or u32 words, a little stream for each row,
    `scale`, `bias` f32, f16 or bf16 (rows, groups). stepped2 … stepped8: `codes` alike, `steps` u8
    (rows, ⌈12 · groups / 8⌉), `scale` f16 (rows, 2), groups of `length` columns.
    symmetric8: `codes` u8 or i8, `scale`. e2m1: `codes`, `scale` u8 (rows, columns / 32), exponents. e4m3: `codes`, `scale`
    f32 (rows, 1). f8q8: `blocks` of 33 bytes. palette4: `codes`, `table` f32 (16,). f32, f16, bf16: `weights` (rows, columns).
    hqq8: `codes` u8 (rows, columns), `scale`, `zero` (groups, columns), those of group r % groups for row r. hqq4: the same
    but `codes` (rows / 2, columns), row r in the high bits and row r + rows / 2 in the low ones.
    woven2, woven3, woven4: `codes` u8 (rows, bytes), `scale` f16 (rows, 1), `tables` u8 (1, 96): `kernels.WOVEN_TABLES`.
    tabled4, tabled2: `codes`, `entries` u32 (rows, 4 · runs of `length` columns), or (1, 4) where `length` is 0. With a
    `block`, tabled and float forms take a `mask` u8: a bit for every so many columns, 0 where their weights are all zero.
    """
    if form not in FORMS:
        raise ValueError(f"no products with weights in the form '{form}': choose one of {', '.join(FORMS)}")
    names, elements, nbytes = FORMS[form]
    require(not block or form in MASKED, ValueError, f"no mask for weights in the form '{form}'")
    names = (*names, "mask") if block else names
    if set(arrays) != set(names):
        raise TypeError(f"a matrix in {form} is made of {', '.join(names)}, not of {', '.join(arrays) or 'nothing'}")
    parts = [_stored(name, arrays[name]) for name in names]
    if form in FLOATS:
        if parts[0].dtype != FLOATS[form]:  # here, because NumPy takes its time to spell a type
            raise TypeError(f"weights must be of {form}, not {arrays['weights'].dtype}")
    else:
        parts[0] = _codes(names[0], parts[0])
    stride = parts[0].shape[1] * parts[0].itemsize
    require(stride % nbytes == 0, ValueError, f"rows of {stride} bytes are not whole {form} blocks of {nbytes}")
    columns = stride // nbytes * elements
    require(columns % 32 == 0, ValueError, f"products take columns in multiples of 32, not {columns}")
    if form == "palette4":
        table = parts[1]
        require(table.dtype == F32, TypeError, f"table must be an array of float32, not {table.dtype}")
        require(table.shape == (1, 16), ValueError, f"table must have sixteen values, not {table.size}")
    elif form in TABLED:
        length = _check_entries(columns, length, *parts[:2])
    elif form in STEPPED:
        length = _check_steps(columns, length, *parts)
    elif form in ACROSS:
        _check_across(form, columns, *parts)
    elif form in WOVEN:
        _check_woven(columns, *parts)
    elif "scale" in names:
        _check_scales(form, columns, *parts)
    if block:
        block = _check_mask(columns, length if form in TABLED else 32, block, len(parts[0]), parts[-1])
    return Matrix(form, tuple(parts), length=length if form in TABLED or form in STEPPED else 0, block=block)


def require(holds: bool, kind: type[Exception], what: str) -> None:
    if not holds:
        raise kind(what)


def _stored(label: str, array: Array) -> Array:
    """Two dimensions, rows one after the other; bf16 as its bits."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{label} must be an array, not {type(array).__name__}")
    if label in ("table", "entries"):
        array = array.reshape(1, -1) if array.ndim == 1 else array
    require(array.ndim == 2 and array.flags.c_contiguous, ValueError, f"{label} must be C-contiguous, of two dimensions")
    return array.view(U16) if is_bf16(array) else array


def _codes(label: str, array: Array) -> Array:
    if array.dtype not in (U8, np.int8, U32):  # here, because NumPy takes its time to spell a type
        raise TypeError(f"{label} must be bytes or 32-bit words, not {array.dtype}")
    return _bytes(array)


def _check_scales(form: str, columns: int, codes: Array, scale: Array, *bias: Array) -> None:
    types = SCALED_BY.get(form, (F32, F16, U16))
    if scale.dtype not in types:
        raise TypeError(f"scale must be {' or '.join(SCALES[kind] for kind in types)}, not {scale.dtype}")
    rows, groups = scale.shape
    require(rows == len(codes), ValueError, f"codes and scale disagree: {len(codes)} and {rows} rows")
    if form == "e4m3":
        require(groups == 1, ValueError, f"e4m3 has one scale a row, not {groups}")
    elif form == "e2m1":
        require(groups * 32 == columns, ValueError, f"e2m1 has a scale for every 32 of {columns} columns, not {groups} a row")
    else:
        whole = columns == 0 if groups == 0 else columns % groups == 0 and columns // groups % 32 == 0
        require(whole, ValueError, f"{groups} scales do not cut {columns} columns into groups of a multiple of 32")
    for part in bias:
        if part.dtype != scale.dtype:
            raise TypeError(f"scale and bias differ in type: {scale.dtype}, {part.dtype}")
        require(part.shape == scale.shape, ValueError, f"scale and bias differ in shape: {scale.shape}, {part.shape}")


def _check_steps(columns: int, length: int, codes: Array, steps: Array, scale: Array) -> int:
    """The length of a group: no more than a row."""
    if steps.dtype != U8 or scale.dtype != F16:
        raise TypeError(f"steps must be bytes and scale f16, not {steps.dtype} and {scale.dtype}")
    length = min(length, columns)
    whole = length > 0 if columns else length == 0
    require(whole and length % 32 == 0, ValueError, f"a group is a multiple of 32 columns, not {length}")
    shape = len(codes), -(-12 * (-(-columns // length) if length else 0) // 8)
    require(
        steps.shape == shape,
        ValueError,
        f"steps of {columns} columns in groups of {length} have shape {shape}, not {steps.shape}",
    )
    require(scale.shape == (len(codes), 2), ValueError, f"a row has two scales: scale has shape {scale.shape}")
    return length


def _check_across(form: str, columns: int, codes: Array, scale: Array, zero: Array) -> None:
    if scale.dtype not in (F32, F16, U16) or zero.dtype != scale.dtype:
        raise TypeError(f"scale and zero must be f32, f16 or bf16, both, not {scale.dtype} and {zero.dtype}")
    require(scale.shape == zero.shape, ValueError, f"scale and zero differ in shape: {scale.shape}, {zero.shape}")
    rows, (groups, width) = len(codes) * ACROSS[form], scale.shape
    require(width == columns, ValueError, f"codes and scale disagree: {columns} and {width} columns")
    whole = rows % (groups * 8) == 0 if groups else rows == 0
    require(whole, ValueError, f"{groups} groups do not share {rows} rows in multiples of 8")


def _check_woven(columns: int, codes: Array, scale: Array, tables: Array) -> None:
    if scale.dtype != F16 or tables.dtype != U8:
        raise TypeError(f"scale must be f16 and tables bytes, not {scale.dtype} and {tables.dtype}")
    require(columns % TURNED == 0, ValueError, f"woven weights have a multiple of {TURNED} columns, not {columns}")
    require(scale.shape == (len(codes), 1), ValueError, f"{len(codes)} rows have a scale each, not {scale.shape}")
    require(tables.shape == (1, 96), ValueError, f"there are six tables of sixteen bytes, not {tables.shape}")


def _check_entries(columns: int, length: int, codes: Array, entries: Array) -> int:
    """The length of a run: no more than a row."""
    require(entries.dtype == U32, TypeError, f"entries must be 32-bit words, not {entries.dtype}")
    length = min(length, columns)
    require(length >= 0 and length % 32 == 0, ValueError, f"a run is a multiple of 32 columns, not {length}")
    shape = (len(codes), 4 * -(-columns // length)) if length else (1, 4)
    whole = entries.shape == shape or (columns == 0 and entries.shape == (len(codes), 0))
    require(whole, ValueError, f"entries of {columns} columns in runs of {length} have shape {shape}, not {entries.shape}")
    return length


def _check_mask(columns: int, length: int, block: int, rows: int, mask: Array) -> int:
    """The length of a block: no more than the runs of a row."""
    require(mask.dtype == U8, TypeError, f"a mask is bytes, not {mask.dtype}")
    if length > 0 and block > columns:
        block = -(-columns // length) * length
    whole = block > 0 and length > 0 and block % length == 0 and block % 32 == 0
    require(whole, ValueError, f"a block is a multiple of 32 columns and of a run of {length}, not {block}")
    blocks = -(-columns // block)
    shape = (rows, -(-blocks // 8))
    require(mask.shape == shape, ValueError, f"a mask of blocks of {block} has shape {shape}, not {mask.shape}")
    return block
