"""The inner loops, by name: native where the extension was built, else their NumPy definition.

Every kernel has one name here, one definition in a `reference` module, one native twin that equals it bit
for bit on every instruction set, and one line in `_native.pyi`. The arrays are checked here, once,
for all of them; a kernel itself never fails.

The best set the processor runs is chosen at import. `FLYWEIGHT_KERNELS` forces one of
reference, baseline, avx2, avx512; asking for one that is not there is an error, never a fallback.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from flyweight.kernels import reference, reference_affine, reference_casts

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import flyweight.kernels._native as _native
except ModuleNotFoundError:  # built without a compiler: the definition serves
    _native = None  # type: ignore[assignment]

__all__ = ["BLOCKS", "DECODED", "ENCODED", "KERNELS", "active", "available", "use"]

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
KERNELS: tuple[str, ...] = (
    *(f"decode_{name}" for name in DECODED),
    *(f"encode_{name}" for name in ENCODED),
    "unpack_bits",
    "pack_bits",
    "bf16_to_f32",
    "f32_to_bf16",
    "f16_to_f32",
    "f32_to_f16",
    "decode_scale_bias",
    "decode_scale_zero",
    "decode_symmetric",
    "encode_scale_bias",
    "encode_symmetric",
)
STORED = ("f32", "f16", "bf16")
"""The types a scale may be rounded to when values are encoded."""


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
        _run.update({kernel: quiet(_definition(kernel)) for kernel in KERNELS})
    else:
        _native.use(name)
        _run.update({kernel: getattr(_native, kernel) for kernel in KERNELS})
    _set = name


def _definition(kernel: str) -> Callable[..., None]:
    """A kernel's NumPy twin. What decodes to f32 may also be asked for bf16 (as bits): the same values, rounded."""
    twin = next(getattr(home, kernel) for home in (reference, reference_affine, reference_casts) if hasattr(home, kernel))
    if not kernel.startswith("decode_"):
        return cast("Callable[..., None]", twin)

    @wraps(twin)
    def decode(*arguments: Any) -> None:
        *rest, out = arguments
        if out.dtype == _F32:
            twin(*rest, out)
        else:
            values = np.empty(out.shape, np.float32)
            twin(*rest, values)
            reference_casts.f32_to_bf16(values, out)

    return decode


def _choose() -> None:
    wanted = os.environ.get(VARIABLE)
    try:
        use(wanted or available()[-1])
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={wanted}: {error}") from None


# The checks -----------------------------------------------------------------------------------

_U8 = np.dtype(np.uint8)
_U16 = np.dtype(np.uint16)
_F32 = np.dtype(np.float32)
_F16 = np.dtype(np.float16)
_BF16 = np.dtype(ml_dtypes.bfloat16)

_choose()


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


def _check_values(out: Array, shape: tuple[int | None, int | None]) -> Array:
    """Room for decoded values, f32 or bf16, as kernels take it: bf16 as its bits."""
    narrow = isinstance(out, np.ndarray) and out.dtype == _BF16
    _check("out", out, _BF16 if narrow else _F32, shape, written=True)
    return out.view(_U16) if narrow else out


def _decoder(name: str) -> Callable[[Array, Array], None]:
    size, nbytes = BLOCKS[name]
    kernel = f"decode_{name}"

    def decode(blocks: Array, out: Array) -> None:
        _check("blocks", blocks, _U8, (None, nbytes))
        _run[kernel](blocks, _check_values(out, (len(blocks), size)))

    decode.__name__ = decode.__qualname__ = kernel
    decode.__doc__ = f"Values of {name} blocks. blocks: u8 (n, {nbytes}), out: f32 or bf16 (n, {size})."
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


def _cast(name: str, narrow: np.dtype[Any], narrows: bool) -> Callable[[Array, Array], None]:
    have, want = (_F32, narrow) if narrows else (narrow, _F32)

    def convert(values: Array, out: Array) -> None:
        _check("values", values, have, (None, None))
        _check("out", out, want, values.shape, written=True)
        _run[name](*(array.view(_U16) if array.dtype == narrow else array for array in (values, out)))

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"{have} to {want}, to nearest. values and out: (rows, columns)."
    return convert


bf16_to_f32 = _cast("bf16_to_f32", _BF16, narrows=False)
f32_to_bf16 = _cast("f32_to_bf16", _BF16, narrows=True)
f16_to_f32 = _cast("f16_to_f32", _F16, narrows=False)
f32_to_f16 = _cast("f32_to_f16", _F16, narrows=True)


def _check_groups(packed: Array, bits: int, columns: int, group: int, written: bool, **parts: Array) -> None:
    """A bit stream per row, and a number for each group of columns."""
    if group < 1:
        raise ValueError(f"group must be at least 1, not {group}")
    _check("packed", packed, _U8, (None, None), written)
    _check_stream(bits, columns, packed.shape[1])
    for label, part in parts.items():
        _check(label, part, _F32, (len(packed), -(-columns // group)), written)


def decode_scale_bias(packed: Array, bits: int, scale: Array, bias: Array, group: int, out: Array) -> None:
    """code · scale + bias per group of columns (the last may be short).

    packed: u8 (rows, nbytes), a bit stream as `unpack_bits` reads it; scale and bias: f32 (rows, groups);
    out: f32 or bf16 (rows, columns).
    """
    room = _check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, scale=scale, bias=bias)
    _check_values(out, (len(packed), None))
    _run["decode_scale_bias"](packed, bits, scale, bias, group, room)


def decode_scale_zero(packed: Array, bits: int, scale: Array, zero: Array, group: int, out: Array) -> None:
    """(code − zero) · scale, arrays as in `decode_scale_bias`."""
    room = _check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, scale=scale, zero=zero)
    _check_values(out, (len(packed), None))
    _run["decode_scale_zero"](packed, bits, scale, zero, group, room)


def decode_symmetric(packed: Array, bits: int, scale: Array, group: int, out: Array) -> None:
    """code · scale, codes in two's complement, arrays as in `decode_scale_bias`."""
    room = _check_values(out, (None, None))
    _check_groups(packed, bits, out.shape[1], group, False, scale=scale)
    _check_values(out, (len(packed), None))
    _run["decode_symmetric"](packed, bits, scale, group, room)


def encode_scale_bias(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array, bias: Array) -> None:
    """The inverse of `decode_scale_bias` by nearest rounding; scale and bias are rounded to the type `stored` first.

    values: f32 (rows, columns). A group that is not finite gets a NaN scale.
    """
    _check("values", values, _F32, (None, None))
    _check("packed", packed, _U8, (len(values), None), written=True)
    _check_groups(packed, bits, values.shape[1], group, True, scale=scale, bias=bias)
    _run["encode_scale_bias"](values, bits, group, STORED.index(stored), packed, scale, bias)


def encode_symmetric(values: Array, bits: int, group: int, stored: str, packed: Array, scale: Array) -> None:
    """The inverse of `decode_symmetric`, arrays as in `encode_scale_bias`."""
    _check("values", values, _F32, (None, None))
    _check("packed", packed, _U8, (len(values), None), written=True)
    _check_groups(packed, bits, values.shape[1], group, True, scale=scale)
    _run["encode_symmetric"](values, bits, group, STORED.index(stored), packed, scale)
