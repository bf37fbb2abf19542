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

from flyweight.kernels import reference, reference_palette, reference_search, reference_words
from flyweight.kernels.reference_words import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "SEARCHED",
    "WORDS",
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
SEARCHED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
"""Encoders that search for scales and take weights."""
KERNELS: tuple[str, ...] = (
    *(f"decode_{name}" for name in DECODED),
    *(f"encode_{name}" for name in ENCODED),
    *(f"encode_{name}" for name in SEARCHED),
    "unpack_bits",
    "pack_bits",
    "affine_decode",
    "palette_decode",
    "palette_nearest",
    "palette_nearest_vector",
    "palette_histogram",
    "palette_cuts",
    *(f"lossless_{step}_{name}" for name in WORDS for step in ("count", "encode", "decode")),
    *(f"expand_{bits}" for bits in (8, 16, 32)),
    "table_decode",
)
DEFINITIONS = (reference, reference_palette, reference_search, reference_words)


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
    """What a kernel is, in NumPy."""
    found: Callable[..., None] = next(getattr(module, kernel) for module in DEFINITIONS if hasattr(module, kernel))
    return found


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
_F64 = np.dtype(np.float64)
_I32 = np.dtype(np.int32)


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
    _check("codes", codes, _U8, (1, None))
    _check("tables", tables, _F32, (None, None))
    if vector < 1 or tables.shape[1] % vector:
        raise ValueError(f"tables of {tables.shape[1]} values do not hold vectors of {vector}")
    _check_tables(tables.shape[1] // vector, codes.shape[1], run, start, len(tables))
    _check("out", out, _F32, (1, codes.shape[1] * vector), written=True)
    _run["palette_decode"](codes, tables, vector, run, start, out)


def palette_nearest(values: Array, midpoints: Array, run: int, start: int, out: Array) -> None:
    """The code of the nearest entry of an ascending table, given by the midpoints of its neighbours.

    values: f32 (1, n), midpoints: f32 (tables, entries − 1), out: u8 (1, n); run and start as in `palette_decode`.
    """
    _check("values", values, _F32, (1, None))
    _check("midpoints", midpoints, _F32, (None, None))
    _check_tables(midpoints.shape[1] + 1, values.shape[1], run, start, len(midpoints))
    _check("out", out, _U8, values.shape, written=True)
    _run["palette_nearest"](values, midpoints, run, start, out)


def palette_nearest_vector(points: Array, table: Array, out: Array) -> None:
    """The code of the nearest entry. points: f32 (n, vector), table: f32 (entries, vector), out: u8 (n, 1)."""
    _check("points", points, _F32, (None, None))
    if not 1 <= points.shape[1] <= 16:
        raise ValueError(f"points have 1 to 16 coordinates, not {points.shape[1]}")
    _check("table", table, _F32, (None, points.shape[1]))
    _check_tables(len(table), 0, 1, 0, 0)
    _check("out", out, _U8, (len(points), 1), written=True)
    _run["palette_nearest_vector"](points, table, out)


def palette_histogram(values: Array, weights: Array, out: Array) -> None:
    """Adds weight and weight · value to each value's bin. values: f32 (1, n), weights: f32 (1, n or 0), out: f64 HISTOGRAM."""
    _check("values", values, _F32, (1, None))
    _check("weights", weights, _F32, (1, None if isinstance(weights, np.ndarray) and not weights.size else values.shape[1]))
    _check("out", out, _F64, HISTOGRAM, written=True)
    _run["palette_histogram"](values, weights, out)


def palette_cuts(mass: Array, moment: Array, best: Array, out: Array) -> None:
    """Where points on a line are best cut into 1, 2, … k clusters.

    mass and moment: f64 (1, points + 1), running sums from 0; best: f64 (2, points + 1), scratch; out: i32 (k, points + 1).
    """
    _check("mass", mass, _F64, (1, None))
    _check("moment", moment, _F64, mass.shape)
    _check("best", best, _F64, (2, mass.shape[1]), written=True)
    _check("out", out, _I32, (None, mass.shape[1]), written=True)
    if not 1 <= len(out) < mass.shape[1] <= 1 << 31:
        raise ValueError(f"{mass.shape[1] - 1} points cannot be cut into {len(out)} clusters")
    _run["palette_cuts"](mass, moment, best, out)


def _grouped(name: str, count: int, planes: Array, low: Array, *runs: Array) -> None:
    """Arrays of exponent coding: groups of 64 values, runs of 4096."""
    groups = -(-count // reference_words.GROUP)
    _check("planes", planes, np.dtype(np.uint64), (groups, WORDS[name].planes))
    _check("low", low, _U8, (groups, reference_words.GROUP * WORDS[name].low))
    for array in runs:
        _check("starts and counts", array, np.dtype(np.uint32), (1, -(-count // reference_words.RUN)))


def _check_base(base: int) -> None:
    if not 0 <= base <= 256 - reference_words.CODED:
        raise ValueError(f"base must be the first of seven exponents, 0 to 249, not {base}")


def _counter(name: str) -> Callable[[Array, Array], None]:
    kernel = f"lossless_count_{name}"

    def count(words: Array, counts: Array) -> None:
        _check("words", words, WORDS[name].dtype, (1, None))
        _check("counts", counts, np.dtype(np.uint64), (1, 256), written=True)
        _run[kernel](words, counts)

    count.__name__ = count.__qualname__ = kernel
    count.__doc__ = f"How often each exponent occurs in {name} words. words: (1, n), counts: u64 (1, 256)."
    return count


def _word_encoder(name: str) -> Callable[[Array, int, Array, Array, Array, Array], None]:
    kernel = f"lossless_encode_{name}"

    def encode(words: Array, base: int, planes: Array, low: Array, escapes: Array, counts: Array) -> None:
        _check("words", words, WORDS[name].dtype, (1, None))
        _check_base(base)
        _grouped(name, words.shape[1], planes, low, counts)
        _check("escapes", escapes, _U8, (1, None))
        if not all(array.flags.writeable for array in (planes, low, escapes, counts)):
            raise ValueError("an output is read-only")
        _run[kernel](words, base, planes, low, escapes, counts)

    encode.__name__ = encode.__qualname__ = kernel
    encode.__doc__ = f"{name} words by exponent coding; counts: the escapes of each run, of which `escapes` keeps what fits."
    return encode


def _word_decoder(name: str) -> Callable[[Array, Array, Array, Array, int, Array, Array], None]:
    kernel = f"lossless_decode_{name}"

    def decode(planes: Array, low: Array, starts: Array, escapes: Array, base: int, counts: Array, out: Array) -> None:
        _check("out", out, WORDS[name].dtype, (1, None), written=True)
        _check_base(base)
        _grouped(name, out.shape[1], planes, low, starts, counts)
        _check("escapes", escapes, _U8, (1, None))
        if not counts.flags.writeable:
            raise ValueError("counts is read-only")
        _run[kernel](planes, low, starts, escapes, base, counts, out)

    decode.__name__ = decode.__qualname__ = kernel
    decode.__doc__ = f"The {name} words of exponent coding; counts: the escapes each run has read. An escape not there is zero."
    return decode


lossless_count_bf16, lossless_count_f16, lossless_count_f32 = map(_counter, WORDS)
lossless_encode_bf16, lossless_encode_f16, lossless_encode_f32 = map(_word_encoder, WORDS)
lossless_decode_bf16, lossless_decode_f16, lossless_decode_f32 = map(_word_decoder, WORDS)


def _expander(bits: int) -> Callable[[Array, Array, Array], None]:
    kernel, word = f"expand_{bits}", np.dtype(f"<u{bits // 8}")

    def expand(mask: Array, values: Array, out: Array) -> None:
        _check("mask", mask, _U8, (None, None))
        _check("values", values, word, (1, None))
        _check("out", out, word, (len(mask), None), written=True)
        _check_stream(1, out.shape[1], mask.shape[1])
        _run[kernel](mask, values, out)

    expand.__name__ = expand.__qualname__ = kernel
    expand.__doc__ = (
        f"Values where a mask has a bit, else zero. mask: u8 (rows, nbytes), values: u{bits} (1, n), out: (rows, columns)."
    )
    return expand


expand_8, expand_16, expand_32 = map(_expander, (8, 16, 32))


def table_decode(codes: Array, table: Array, scale: Array, group: int, out: Array) -> None:
    """table[code] · scale per group of columns (the last may be short).

    codes: u8 (rows, columns), table: f32 (1, 256), scale: f32 (rows, groups), out: f32 (rows, columns).
    """
    if group < 1:
        raise ValueError(f"group must be at least 1, not {group}")
    _check("codes", codes, _U8, (None, None))
    rows, columns = codes.shape
    _check("table", table, _F32, (1, 256))
    _check("scale", scale, _F32, (rows, -(-columns // group)))
    _check("out", out, _F32, (rows, columns), written=True)
    _run["table_decode"](codes, table, scale, group, out)
