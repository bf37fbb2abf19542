"""Which kernels run, and what is checked before one does.

Every kernel has one name in KERNELS, one definition in NumPy (DEFINITIONS), one native twin that equals it bit for bit on every
instruction set (products: within a derived bound), and one line in `_native.pyi`. The best set is chosen at import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, cast

import numpy as np

from flyweight.dtypes import DType
from flyweight.errors import ArgumentError
from flyweight.kernels import reference_casts
from flyweight.kernels.reference_words import WORDS

try:
    import flyweight.kernels._native as _native
except ModuleNotFoundError:  # built without a compiler: the definition serves
    _native = None  # type: ignore[assignment]

__all__ = [
    "BLOCKS",
    "DECODED",
    "DEFINITIONS",
    "ENCODED",
    "KERNELS",
    "PRODUCTS",
    "SEARCHED",
    "WORDS",
    "_native",
    "active",
    "available",
    "definition",
    "use",
]

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
SEARCHED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "iq4_nl", "q8_k")
"""Encoders that search for scales and take weights."""
PRODUCTS = ("multiply", "gated")
"""Products with stored weights: the one family that is held to a bound, not to equal bits."""
KERNELS: tuple[str, ...] = (
    *(f"decode_{name}" for name in DECODED),
    *(f"encode_{name}" for name in ENCODED),
    *(f"encode_{name}" for name in SEARCHED),
    "unpack_bits",
    "pack_bits",
    "bf16_to_f32",
    "f32_to_bf16",
    "f16_to_f32",
    "f32_to_f16",
    "decode_scale_bias",
    "decode_scale_zero",
    "decode_signed_bias",
    "decode_symmetric",
    "encode_scale_bias",
    "encode_signed_bias",
    "encode_symmetric",
    "palette_decode",
    "palette_nearest",
    "palette_nearest_vector",
    "palette_histogram",
    "palette_cuts",
    "palette_centres",
    *(f"lossless_{step}_{name}" for name in WORDS for step in ("count", "encode", "decode")),
    *(f"expand_{bits}" for bits in (8, 16, 32)),
    "table_decode",
    "magnitudes",
    "fp8_codes",
    "sign_encode",
    *(f"{step}_{bits}" for step in ("mark", "gather") for bits in (8, 16, 32)),
    "places",
    "add_product",
    "astc_decode",
    *PRODUCTS,
    "attend",
    "attend_int8",
    "rms_norm",
    "softcap",
    "grid_codes",
    "grid_loss",
    "grid_sums",
    "hqq_codes",
    "hqq_round",
)
DEFINITIONS = (
    "reference",
    "reference_affine",
    "reference_astc",
    "reference_attention",
    "reference_casts",
    "reference_codecs",
    "reference_grids",
    "reference_matvec",
    "reference_palette",
    "reference_search",
    "reference_words",
)
"""The modules with the definitions, imported when one is asked for."""

U8 = np.dtype(np.uint8)
U16 = np.dtype(np.uint16)
I32 = np.dtype(np.int32)
F16 = np.dtype(np.float16)
F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)


# Which set runs -------------------------------------------------------------------------------

_set = "reference"
running: dict[str, Callable[..., None]] = {}
"""The kernels of the set that runs, by name."""


def available() -> tuple[str, ...]:
    """The kernel sets this build holds and this processor runs, slowest first."""
    return ("reference", *(_native.available() if _native else ()))


def active() -> str:
    """The set that runs, as the running code itself reports it."""
    return _native.active() if _native and _set != "reference" else "reference"


def definition(kernel: str) -> Callable[..., None]:
    """A kernel's NumPy twin. What decodes to f32 may also be asked for bf16 (as bits): the same values, rounded."""
    homes = (import_module(f"flyweight.kernels.{name}") for name in DEFINITIONS)
    twin = next(getattr(home, kernel) for home in homes if hasattr(home, kernel))
    if kernel.startswith("encode_"):
        return _widening(cast("Callable[..., None]", twin))
    if not kernel.startswith("decode_"):
        return cast("Callable[..., None]", twin)

    @wraps(twin)
    def decode(*arguments: Any) -> None:
        *rest, out = arguments
        if out.dtype == F32:
            twin(*rest, out)
        else:
            values = np.empty(out.shape, np.float32)
            twin(*rest, values)
            reference_casts.f32_to_bf16(values, out)

    return decode


def _widening(twin: Callable[..., None]) -> Callable[..., None]:
    """What encodes f32 may also be given bf16 (as bits): the same values."""

    @wraps(twin)
    def encode(values: Array, *rest: Any) -> None:
        wide = values
        if values.dtype != F32:
            wide = np.empty(values.shape, np.float32)
            reference_casts.bf16_to_f32(values, wide)
        twin(wide, *rest)

    return encode


def use(name: str) -> None:
    """Switch every kernel of the process to the named set."""
    global _set
    if name not in available():
        raise ArgumentError(
            f"no kernel set '{name}' in this build on this processor", hint=f"choose one of {', '.join(available())}"
        )
    if name == "reference":
        quiet = np.errstate(all="ignore")  # NaN and infinity are results, not news
        running.update({kernel: quiet(definition(kernel)) for kernel in KERNELS})
    else:
        _native.use(name)
        running.update({kernel: getattr(_native, kernel) for kernel in KERNELS})
    _set = name


def _choose() -> None:
    wanted = os.environ.get(VARIABLE)
    try:
        use(wanted or available()[-1])
    except ArgumentError as error:
        raise ArgumentError(f"{VARIABLE}={wanted}: {error.message}", hint=error.hint) from None


_choose()


# The checks -----------------------------------------------------------------------------------


def check(label: str, array: Array, dtype: np.dtype[Any], shape: tuple[int | None, int | None], written: bool = False) -> None:
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


def is_bf16(array: object) -> bool:
    """Whether it is an array of bf16, which NumPy itself does not have: only then is the package imported that does."""
    return isinstance(array, np.ndarray) and array.dtype.kind == "V" and array.dtype == DType.BF16.numpy


def check_values(out: Array, shape: tuple[int | None, int | None]) -> Array:
    """Room for decoded values, f32 or bf16, as kernels take it: bf16 as its bits."""
    narrow = is_bf16(out)
    check("out", out, out.dtype if narrow else F32, shape, written=True)
    return out.view(U16) if narrow else out


def check_numbers(values: Array, shape: tuple[int | None, int | None]) -> Array:
    """Values to encode, f32 or bf16, as kernels take them: bf16 as its bits."""
    narrow = is_bf16(values)
    check("values", values, values.dtype if narrow else F32, shape)
    return values.view(U16) if narrow else values


def check_stream(bits: int, count: int, nbytes: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be 1 to 8, not {bits}")
    if count * bits > nbytes * 8:
        raise ValueError(f"{count} codes of {bits} bits do not fit in rows of {nbytes} bytes")
