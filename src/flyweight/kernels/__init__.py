"""The inner loops, by name: native where the extension was built, else their NumPy definition.

Every kernel has one name here, one definition in `reference`, one native twin that equals it bit
for bit on every instruction set, and one line in `_native.pyi`. The arrays are checked here, once,
for all of them; a kernel itself never fails.

The best set the processor runs is chosen at import. `FLYWEIGHT_KERNELS` forces one of
reference, baseline, avx2, avx512; asking for one that is not there is an error, never a fallback.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from flyweight.kernels import reference, reference_search

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import flyweight.kernels._native as _native
except ModuleNotFoundError:  # built without a compiler: the definition serves
    _native = None  # type: ignore[assignment]

__all__ = ["BLOCKS", "DECODED", "ENCODED", "KERNELS", "SEARCHED", "active", "available", "definition", "use"]

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
SEARCHED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
"""Encoders that search for scales and take weights."""
KERNELS: tuple[str, ...] = (
    *(f"decode_{name}" for name in DECODED),
    *(f"encode_{name}" for name in ENCODED),
    *(f"encode_{name}" for name in SEARCHED),
    "unpack_bits",
    "pack_bits",
    "affine_decode",
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


def definition(kernel: str) -> Callable[..., None]:
    """A kernel in NumPy."""
    home = reference if hasattr(reference, kernel) else reference_search
    made: Callable[..., None] = getattr(home, kernel)
    return made


def use(name: str) -> None:
    """Switch every kernel of the process to the named set."""
    global _set
    if name not in available():
        raise ValueError(f"no kernel set '{name}' in this build on this processor: choose one of {', '.join(available())}")
    if name == "reference":
        quiet = np.errstate(all="ignore")  # NaN and infinity are results, not news
        _run.update({kernel: quiet(definition(kernel)) for kernel in KERNELS})
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


def _searcher(name: str) -> Callable[[Array, Array, Array], None]:
    size, nbytes = BLOCKS[name]
    kernel = f"encode_{name}"

    def encode(values: Array, weights: Array, blocks: Array) -> None:
        _check("values", values, _F32, (None, size))
        _check("weights", weights, _F32, (None, size))
        _check("blocks", blocks, _U8, (len(values), nbytes), written=True)
        if not len(weights):
            raise ValueError("weights must have a row")
        _run[kernel](values, weights, blocks)

    encode.__name__ = encode.__qualname__ = kernel
    encode.__doc__ = (
        f"Blocks of {name} of least weighted error that a search finds. values: f32 (n, {size}), "
        f"weights: f32 (m, {size}), row i mod m for block i, positive and finite, blocks: u8 (n, {nbytes})."
    )
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
encode_q2_k = _searcher("q2_k")
encode_q3_k = _searcher("q3_k")
encode_q4_k = _searcher("q4_k")
encode_q5_k = _searcher("q5_k")
encode_q6_k = _searcher("q6_k")
encode_iq4_xs = _searcher("iq4_xs")


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
