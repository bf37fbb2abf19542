"""The inner loops, by name: native where the extension was built, else their NumPy definition.

Every kernel has one name here, one definition in `reference`, one native twin that equals it bit
for bit on every instruction set, and one line in `_native.pyi`. Products (MATVEC, defined in
`reference_matvec`) are sums of floats: their twins equal them within the bound of
docs/formats/matvec.md. The arrays are checked here, once, for all of them; a kernel itself never fails.

The best set the processor runs is chosen at import. `FLYWEIGHT_KERNELS` forces one of
reference, baseline, avx2, avx512; asking for one that is not there is an error, never a fallback.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from flyweight.kernels import reference, reference_matvec

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import flyweight.kernels._native as _native
except ModuleNotFoundError:  # built without a compiler: the definition serves
    _native = None  # type: ignore[assignment]

__all__ = ["BLOCKS", "DECODED", "ENCODED", "KERNELS", "MATVEC", "active", "available", "use"]

Array = np.ndarray[Any, Any]

VARIABLE = "FLYWEIGHT_KERNELS"

BLOCKS: dict[str, tuple[int, int]] = {
    # elements and bytes of a block
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q8_1": (32, 36),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "q8_k": (256, 292),
    "mxfp4": (32, 17),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
}
DECODED = tuple(BLOCKS)
ENCODED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4")
MATVEC: dict[str, bool] = {
    # the product with weights in each form, and whether it also takes activations as int8
    "matvec_q4_0": True,
    "matvec_q8_0": True,
    "matvec_q4_k": True,
    "matvec_q6_k": True,
    "matvec_affine4": True,
    "matvec_affine8": True,
    "matvec_symmetric8": True,
    "matvec_bf16": False,
    "matvec_f16": False,
    "matvec_palette4": False,
}
KERNELS: tuple[str, ...] = (
    *(f"decode_{name}" for name in DECODED),
    *(f"encode_{name}" for name in ENCODED),
    "unpack_bits",
    "pack_bits",
    "affine_decode",
    *MATVEC,
)


# Which set runs -------------------------------------------------------------------------------

_set = "reference"
_run: dict[str, Callable[..., None]] = {}


def available() -> tuple[str, ...]:
    """The kernel sets this build holds and this processor runs, slowest first."""
    return ("reference", *(_native.available() if _native else ()))


def active() -> str:
    """The set that runs, as the running code itself reports it."""
    return _native.active() if _native and _set != "reference" else "reference"


def use(name: str) -> None:
    """Switch every kernel of the process to the named set."""
    global _set
    if name not in available():
        raise ValueError(f"no kernel set '{name}' in this build on this processor: choose one of {', '.join(available())}")
    if name == "reference":
        quiet = np.errstate(all="ignore")  # NaN and infinity are results, not news
        homes = {kernel: reference_matvec if kernel in MATVEC else reference for kernel in KERNELS}
        _run.update({kernel: quiet(getattr(home, kernel)) for kernel, home in homes.items()})
    else:
        _native.use(name)
        _run.update({kernel: getattr(_native, kernel) for kernel in KERNELS})
    _set = name


def _choose() -> None:
    wanted = os.environ.get(VARIABLE)
    try:
        use(wanted or available()[-1])
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={wanted}: {error}") from None


_choose()


# The checks -----------------------------------------------------------------------------------

_U8 = np.dtype(np.uint8)
_F32 = np.dtype(np.float32)


def _check(label: str, array: Array, dtype: np.dtype[Any], shape: tuple[int | None, int | None], written: bool = False) -> None:
    """Type, shape (None = any), and memory a pointer can walk; TypeError or ValueError if not."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise TypeError(f"{label} must be an array of {dtype}, not {getattr(array, 'dtype', type(array).__name__)}")
    if array.ndim != 2 or any(want is not None and want != have for want, have in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{label} must have shape ({wanted}), not {array.shape}")
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        raise ValueError(f"{label} must be C-contiguous and aligned")
    if written and not flags.writeable:
        raise ValueError(f"{label} is read-only")


def _decoder(name: str) -> Callable[[Array, Array], None]:
    size, nbytes = BLOCKS[name]
    kernel = f"decode_{name}"

    def decode(blocks: Array, out: Array) -> None:
        _check("blocks", blocks, _U8, (None, nbytes))
        _check("out", out, _F32, (len(blocks), size), written=True)
        _run[kernel](blocks, out)

    decode.__name__ = decode.__qualname__ = kernel
    decode.__doc__ = f"Values of {name} blocks. blocks: u8 (n, {nbytes}), out: f32 (n, {size})."
    return decode


def _encoder(name: str) -> Callable[[Array, Array], None]:
    size, nbytes = BLOCKS[name]
    kernel = f"encode_{name}"

    def encode(values: Array, blocks: Array) -> None:
        _check("values", values, _F32, (None, size))
        _check("blocks", blocks, _U8, (len(values), nbytes), written=True)
        _run[kernel](values, blocks)

    encode.__name__ = encode.__qualname__ = kernel
    encode.__doc__ = f"Blocks of {name} by nearest rounding. values: f32 (n, {size}), blocks: u8 (n, {nbytes})."
    return encode


# The kernels ----------------------------------------------------------------------------------

decode_q4_0 = _decoder("q4_0")
decode_q4_1 = _decoder("q4_1")
decode_q5_0 = _decoder("q5_0")
decode_q5_1 = _decoder("q5_1")
decode_q8_0 = _decoder("q8_0")
decode_q8_1 = _decoder("q8_1")
decode_q2_k = _decoder("q2_k")
decode_q3_k = _decoder("q3_k")
decode_q4_k = _decoder("q4_k")
decode_q5_k = _decoder("q5_k")
decode_q6_k = _decoder("q6_k")
decode_q8_k = _decoder("q8_k")
decode_mxfp4 = _decoder("mxfp4")
decode_iq4_nl = _decoder("iq4_nl")
decode_iq4_xs = _decoder("iq4_xs")
encode_q4_0 = _encoder("q4_0")
encode_q4_1 = _encoder("q4_1")
encode_q5_0 = _encoder("q5_0")
encode_q5_1 = _encoder("q5_1")
encode_q8_0 = _encoder("q8_0")
encode_mxfp4 = _encoder("mxfp4")


def _check_stream(bits: int, count: int, nbytes: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be 1 to 8, not {bits}")
    if count * bits > nbytes * 8:
        raise ValueError(f"{count} codes of {bits} bits do not fit in rows of {nbytes} bytes")


def unpack_bits(packed: Array, bits: int, out: Array) -> None:
    """Codes of a little-endian bit stream per row. packed: u8 (rows, nbytes), out: u8 (rows, count)."""
    _check("packed", packed, _U8, (None, None))
    _check("out", out, _U8, (len(packed), None), written=True)
    _check_stream(bits, out.shape[1], packed.shape[1])
    _run["unpack_bits"](packed, bits, out)


def pack_bits(codes: Array, bits: int, out: Array) -> None:
    """A little-endian bit stream per row, zero to the row's end. codes: u8 (rows, count), out: u8 (rows, nbytes)."""
    _check("codes", codes, _U8, (None, None))
    _check("out", out, _U8, (len(codes), None), written=True)
    _check_stream(bits, codes.shape[1], out.shape[1])
    _run["pack_bits"](codes, bits, out)


def affine_decode(codes: Array, scale: Array, bias: Array, group: int, out: Array) -> None:
    """code · scale + bias per group of columns (the last may be short).

    codes: u8 (rows, columns), scale and bias: f32 (rows, groups), out: f32 (rows, columns).
    """
    if group < 1:
        raise ValueError(f"group must be at least 1, not {group}")
    _check("codes", codes, _U8, (None, None))
    rows, columns = codes.shape
    _check("scale", scale, _F32, (rows, -(-columns // group)))
    _check("bias", bias, _F32, scale.shape)
    _check("out", out, _F32, (rows, columns), written=True)
    _run["affine_decode"](codes, scale, bias, group, out)


# Products with stored weights -----------------------------------------------------------------

BATCH = 16
"""The most products of one call."""

_U16 = np.dtype(np.uint16)
_F16 = np.dtype(np.float16)
_BF16 = np.dtype(ml_dtypes.bfloat16)


def _check_product(rows: int, columns: int, x: Array, out: Array, threads: int) -> None:
    _check("x", x, _F32, (None, columns))
    _check("out", out, _F32, (len(x), rows), written=True)
    if not 1 <= len(x) <= BATCH:
        raise ValueError(f"x must have 1 to {BATCH} rows, not {len(x)}")
    if columns % 32:
        raise ValueError(f"products take columns in multiples of 32, not {columns}")
    if not 1 <= threads <= 256:
        raise ValueError(f"threads must be 1 to 256, not {threads}")


def _bits(array: Array) -> Array:
    """The extension takes bf16 as u16."""
    return array.view(_U16) if isinstance(array, np.ndarray) and array.dtype == _BF16 else array


def _blocks_product(name: str) -> Callable[..., None]:
    size, nbytes = BLOCKS[name]
    kernel = f"matvec_{name}"

    def matvec(blocks: Array, x: Array, out: Array, int8: bool = False, threads: int = 1) -> None:
        _check("blocks", blocks, _U8, (None, None))
        rows, stride = blocks.shape
        if stride % nbytes:
            raise ValueError(f"rows of {stride} bytes are not whole {name} blocks of {nbytes}")
        _check_product(rows, stride // nbytes * size, x, out, threads)
        _run[kernel](blocks, x, out, int8, threads)

    matvec.__name__ = matvec.__qualname__ = kernel
    matvec.__doc__ = f"x · Wᵀ, W in {name}. blocks: u8 (rows, bytes), x: f32 (n, columns), out: f32 (n, rows)."
    return matvec


matvec_q4_0 = _blocks_product("q4_0")
matvec_q8_0 = _blocks_product("q8_0")
matvec_q4_k = _blocks_product("q4_k")
matvec_q6_k = _blocks_product("q6_k")


def _check_groups(columns: int, group: int, codes: Array, **parts: Array) -> None:
    if group < 32 or group % 32 or columns % group:
        raise ValueError(f"products take groups of a multiple of 32 that divides {columns} columns, not {group}")
    kinds = [array.dtype for array in parts.values() if isinstance(array, np.ndarray)]
    kind = kinds[0] if kinds and kinds[0] in (_F32, _F16, _U16) else _F32
    for label, array in parts.items():
        _check(label, array, kind, (len(codes), columns // group))


def matvec_affine4(
    codes: Array, scale: Array, bias: Array, group: int, x: Array, out: Array, int8: bool = False, threads: int = 1
) -> None:
    """x · Wᵀ, W = code · scale + bias, two codes a byte, the low one first.

    codes: u8 (rows, columns / 2), scale and bias: f32, f16 or bf16 (rows, columns / group).
    """
    _check("codes", codes, _U8, (None, None))
    scale, bias, columns = _bits(scale), _bits(bias), codes.shape[1] * 2
    _check_groups(columns, group, codes, scale=scale, bias=bias)
    _check_product(len(codes), columns, x, out, threads)
    _run["matvec_affine4"](codes, scale, bias, group, x, out, int8, threads)


def matvec_affine8(
    codes: Array, scale: Array, bias: Array, group: int, x: Array, out: Array, int8: bool = False, threads: int = 1
) -> None:
    """x · Wᵀ, W = code · scale + bias, a code a byte. Shapes as in `matvec_affine4`, codes: u8 (rows, columns)."""
    _check("codes", codes, _U8, (None, None))
    scale, bias, columns = _bits(scale), _bits(bias), codes.shape[1]
    _check_groups(columns, group, codes, scale=scale, bias=bias)
    _check_product(len(codes), columns, x, out, threads)
    _run["matvec_affine8"](codes, scale, bias, group, x, out, int8, threads)


def matvec_symmetric8(
    codes: Array, scale: Array, group: int, x: Array, out: Array, int8: bool = False, threads: int = 1
) -> None:
    """x · Wᵀ, W = code · scale, codes two's complement in u8 (rows, columns); group = columns for one scale a row."""
    _check("codes", codes, _U8, (None, None))
    scale, columns = _bits(scale), codes.shape[1]
    _check_groups(columns, group, codes, scale=scale)
    _check_product(len(codes), columns, x, out, threads)
    _run["matvec_symmetric8"](codes, scale, group, x, out, int8, threads)


def matvec_bf16(weights: Array, x: Array, out: Array, threads: int = 1) -> None:
    """x · Wᵀ, W in bf16, as that or as u16 (rows, columns)."""
    weights = _bits(weights)
    _check("weights", weights, _U16, (None, None))
    _check_product(weights.shape[0], weights.shape[1], x, out, threads)
    _run["matvec_bf16"](weights, x, out, threads)


def matvec_f16(weights: Array, x: Array, out: Array, threads: int = 1) -> None:
    """x · Wᵀ, W in f16 (rows, columns)."""
    _check("weights", weights, _F16, (None, None))
    _check_product(weights.shape[0], weights.shape[1], x, out, threads)
    _run["matvec_f16"](weights.view(_U16), x, out, threads)


def matvec_palette4(codes: Array, table: Array, x: Array, out: Array, threads: int = 1) -> None:
    """x · Wᵀ, W = table[code], two codes a byte, the low one first. codes: u8 (rows, columns / 2), table: f32 (16,)."""
    _check("codes", codes, _U8, (None, None))
    if not isinstance(table, np.ndarray) or table.ndim != 1:
        raise TypeError("table must be an array of one dimension")
    _check("table", table.reshape(1, -1), _F32, (1, 16))
    _check_product(len(codes), codes.shape[1] * 2, x, out, threads)
    _run["matvec_palette4"](codes, table, x, out, threads)
