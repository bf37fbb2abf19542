"""Products with stored weights: f(x) · Wᵀ straight from their packed form, docs/formats/matvec.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flyweight.kernels import dispatch
from flyweight.kernels.dispatch import BLOCKS, F16, F32, U8, U16, Array, _native, is_bf16, running
from flyweight.kernels.reference_matvec import rows_of

U32 = np.dtype(np.uint32)

FORMS: dict[str, tuple[tuple[str, ...], int, int]] = {
    # the parts of a matrix, and the columns and bytes of a block of the first
    **{name: (("blocks",), *BLOCKS[name]) for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")},
    "affine4": (("codes", "scale", "bias"), 2, 1),
    "affine8": (("codes", "scale", "bias"), 1, 1),
    "symmetric8": (("codes", "scale"), 1, 1),
    "tabled4": (("codes", "entries"), 2, 1),
    "tabled2": (("codes", "entries"), 4, 1),
    "palette4": (("codes", "table"), 2, 1),
    "f32": (("weights",), 1, 4),
    "f16": (("weights",), 1, 2),
    "bf16": (("weights",), 1, 2),
}
"""The forms a matrix may be stored in."""

FLOATS = {"f32": F32, "f16": F16, "bf16": U16}
TABLED = ("tabled4", "tabled2")
MASKED = (*TABLED, *FLOATS)
"""Forms that may have a mask of blocks to skip."""
SCALES = {F32: "f32", F16: "f16", U16: "bf16"}


class Matrix:
    """Weights as stored, checked once: (rows, columns), in one of FORMS. Made by `matrix`; m[a:b] are some of its rows."""

    __slots__ = ("block", "columns", "form", "length", "native", "parts", "rows")

    def __init__(self, form: str, parts: tuple[Array, ...], *, length: int = 0, block: int = 0) -> None:
        names, elements, nbytes = FORMS[form]
        self.form, self.parts, self.rows = form, parts, len(parts[0])
        self.length, self.block = length, block
        self.columns = parts[0].shape[1] * parts[0].itemsize // nbytes * elements
        self.native = None
        if _native:
            kind = f"{form}_{SCALES[parts[1].dtype]}" if "scale" in names else form
            self.native = _native._Matrix(kind, *(_bytes(part) for part in parts), length=length, block=block)

    def __getitem__(self, rows: slice) -> Matrix:
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

    q*: `blocks` u8 (rows, bytes). affine4, affine8: `codes` u8 or u32 words, `scale`, `bias` f32, f16 or bf16 (rows, groups).
    symmetric8: `codes` u8 or i8, `scale`. palette4: `codes`, `table` f32 (16,). f32, f16, bf16: `weights` (rows, columns).
    tabled4, tabled2: `codes`, `entries` u32 (rows, 4 · runs of `length` columns), or (1, 4) where `length` is 0. With a
    `block`, tabled and float forms take a `mask` u8: a bit for every so many columns, 0 where their weights are all zero.
    """
    if form not in FORMS:
        raise ValueError(f"no products with weights in the form '{form}': choose one of {', '.join(FORMS)}")
    names, elements, nbytes = FORMS[form]
    _require(not block or form in MASKED, ValueError, f"no mask for weights in the form '{form}'")
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
    _require(stride % nbytes == 0, ValueError, f"rows of {stride} bytes are not whole {form} blocks of {nbytes}")
    columns = stride // nbytes * elements
    _require(columns % 32 == 0, ValueError, f"products take columns in multiples of 32, not {columns}")
    if form == "palette4":
        table = parts[1]
        _require(table.dtype == F32, TypeError, f"table must be an array of float32, not {table.dtype}")
        _require(table.shape == (1, 16), ValueError, f"table must have sixteen values, not {table.size}")
    elif form in TABLED:
        length = _check_entries(columns, length, *parts[:2])
    elif "scale" in names:
        _check_scales(columns, *parts)
    if block:
        block = _check_mask(columns, length if form in TABLED else 32, block, len(parts[0]), parts[-1])
    return Matrix(form, tuple(parts), length=length if form in TABLED else 0, block=block)


def _require(holds: bool, kind: type[Exception], what: str) -> None:
    if not holds:
        raise kind(what)


def _stored(label: str, array: Array) -> Array:
    """Two dimensions, rows one after the other; bf16 as its bits."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{label} must be an array, not {type(array).__name__}")
    if label in ("table", "entries"):
        array = array.reshape(1, -1) if array.ndim == 1 else array
    _require(array.ndim == 2 and array.flags.c_contiguous, ValueError, f"{label} must be C-contiguous, of two dimensions")
    return array.view(U16) if is_bf16(array) else array


def _codes(label: str, array: Array) -> Array:
    if array.dtype not in (U8, np.int8, U32):  # here, because NumPy takes its time to spell a type
        raise TypeError(f"{label} must be bytes or 32-bit words, not {array.dtype}")
    return _bytes(array)


def _check_scales(columns: int, codes: Array, scale: Array, *bias: Array) -> None:
    if scale.dtype not in SCALES:
        raise TypeError(f"scale must be f32, f16 or bf16, not {scale.dtype}")
    rows, groups = scale.shape
    _require(rows == len(codes), ValueError, f"codes and scale disagree: {len(codes)} and {rows} rows")
    whole = columns == 0 if groups == 0 else columns % groups == 0 and columns // groups % 32 == 0
    _require(whole, ValueError, f"{groups} scales do not cut {columns} columns into groups of a multiple of 32")
    for part in bias:
        if part.dtype != scale.dtype:
            raise TypeError(f"scale and bias differ in type: {scale.dtype}, {part.dtype}")
        _require(part.shape == scale.shape, ValueError, f"scale and bias differ in shape: {scale.shape}, {part.shape}")


def _check_entries(columns: int, length: int, codes: Array, entries: Array) -> int:
    """The length of a run: no more than a row."""
    _require(entries.dtype == U32, TypeError, f"entries must be 32-bit words, not {entries.dtype}")
    length = min(length, columns)
    _require(length >= 0 and length % 32 == 0, ValueError, f"a run is a multiple of 32 columns, not {length}")
    shape = (len(codes), 4 * -(-columns // length)) if length else (1, 4)
    whole = entries.shape == shape or (columns == 0 and entries.shape == (len(codes), 0))
    _require(whole, ValueError, f"entries of {columns} columns in runs of {length} have shape {shape}, not {entries.shape}")
    return length


def _check_mask(columns: int, length: int, block: int, rows: int, mask: Array) -> int:
    """The length of a block: no more than the runs of a row."""
    _require(mask.dtype == U8, TypeError, f"a mask is bytes, not {mask.dtype}")
    if length > 0 and block > columns:
        block = -(-columns // length) * length
    whole = block > 0 and length > 0 and block % length == 0 and block % 32 == 0
    _require(whole, ValueError, f"a block is a multiple of 32 columns and of a run of {length}, not {block}")
    blocks = -(-columns // block)
    shape = (rows, -(-blocks // 8))
    _require(mask.shape == shape, ValueError, f"a mask of blocks of {block} has shape {shape}, not {mask.shape}")
    return block


# Products -------------------------------------------------------------------------------------


def multiply(
    matrices: Sequence[Matrix],
    x: Array,
    out: Array,
    *,
    gain: Array | None = None,
    eps: float = 0.0,
    bias: Array | None = None,
    add: bool = False,
    int8: bool = True,
    threads: int = 2,
) -> None:
    """out = f(x) · [W1; W2; …]ᵀ + bias, or out += …; f is RMS normalisation where there is a gain.

    x: f32 (n, columns), out: f32 (n, all rows), gain: f32 (columns,), bias: f32 (all rows,).
    """
    if dispatch.active() == "reference":
        _check_products(matrices, x, out, sum(m.rows for m in matrices), gain, bias, threads)
    try:
        running["multiply"](matrices, x, out, gain=gain, eps=eps, bias=bias, add=add, int8=int8, threads=threads)
    except (TypeError, ValueError, AttributeError):
        _check_products(matrices, x, out, sum(m.rows for m in matrices), gain, bias, threads)  # says it in words
        raise


def gated(
    gate: Matrix,
    up: Matrix,
    x: Array,
    out: Array,
    *,
    activation: str = "silu",
    gain: Array | None = None,
    eps: float = 0.0,
    int8: bool = True,
    threads: int = 2,
) -> None:
    """out = act(f(x) · gateᵀ) ⊙ (f(x) · upᵀ), act being silu or gelu_tanh. Shapes as in `multiply`, out: f32 (n, gate.rows)."""
    if dispatch.active() == "reference":
        _check_gated(gate, up, x, out, activation, gain, threads)
    try:
        running["gated"](gate, up, x, out, activation=activation, gain=gain, eps=eps, int8=int8, threads=threads)
    except (TypeError, ValueError, AttributeError):
        _check_gated(gate, up, x, out, activation, gain, threads)
        raise


def _check_gated(gate: Matrix, up: Matrix, x: Array, out: Array, activation: str, gain: Array | None, threads: int) -> None:
    _check_products((gate, up), x, out, gate.rows, gain, None, threads)
    _require(gate.rows == up.rows, ValueError, f"gate and up differ in rows: {gate.rows}, {up.rows}")
    _require(activation in ("silu", "gelu_tanh"), ValueError, f"activation must be silu or gelu_tanh, not {activation!r}")


def _check_products(
    matrices: Sequence[Matrix], x: Array, out: Array, rows: int, gain: Array | None, bias: Array | None, threads: int
) -> None:
    _require(len(matrices) > 0, ValueError, "a product needs a matrix")
    columns = matrices[0].columns
    for m in matrices:
        _require(m.columns == columns, ValueError, f"matrices differ in columns: {columns}, {m.columns}")
    dispatch.check("x", x, F32, (None, columns))
    dispatch.check("out", out, F32, (len(x), rows), written=True)
    for label, vector, length in (("gain", gain, columns), ("bias", bias, rows)):
        if vector is not None:
            dispatch.check(label, np.reshape(vector, (1, -1)), F32, (1, length))
            _require(vector.ndim == 1, ValueError, f"{label} must have one dimension")
    _require(len(x) > 0, ValueError, "x has no rows")
    _require(1 <= threads <= 256, ValueError, f"threads must be 1 to 256, not {threads}")
