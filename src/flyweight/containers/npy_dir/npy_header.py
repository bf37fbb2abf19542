"""The header of a .npy file, read without evaluating it.

    \\x93NUMPY · u8 major · u8 minor · u16 (major 1) or u32 (2, 3) length · text · the elements, row-major, little-endian

The text is a Python dictionary of exactly three keys, padded with spaces to a multiple of 64 bytes and ended by a newline:

    {'descr': '<f4', 'fortran_order': False, 'shape': (96, 64), }

It is matched item by item against what NumPy writes. What may follow is in DESCRS: no objects, no records, no text, no raw
bytes, no big-endian numbers. The shape is compared with the size of the file before anything is allocated.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from flyweight.foundation.cursor import Cursor, check_shape, utf8
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import CUT_SHORT, FlyweightError, LimitError, MalformedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.sources import Source

MAGIC = b"\x93NUMPY"
DESCRS = {
    "<f2": DType.F16, "<f4": DType.F32, "<f8": DType.F64, "|b1": DType.BOOL,
    "|i1": DType.I8, "<i2": DType.I16, "<i4": DType.I32, "<i8": DType.I64,
    "|u1": DType.U8, "<u2": DType.U16, "<u4": DType.U32, "<u8": DType.U64,
}  # fmt: skip
"""The element types an array may have."""
MAX_HEADER = 10_000
"""Bytes of text; NumPy's own limit. Ours take about 100."""

_USUAL = 128
"""Bytes of nearly every header, which begins with these."""
_USUAL_START = MAGIC + bytes([1, 0]) + (_USUAL - 10).to_bytes(2, "little")
_NAMES = {dtype: descr for descr, dtype in DESCRS.items()}
_ITEM = re.compile(
    r"""\s*(['"])(?P<key>descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?:(['"])(?P<descr>[^'"]{0,16})\3|(?P<flag>True|False)|\((?P<shape>[\d\s,]*)\))\s*(?P<end>,\s*\}|,|\})""",
    re.ASCII,
)
_DIGITS = 20
_GROWTH = 21  # NumPy leaves room for the first dimension to grow to as many digits


class Header(NamedTuple):
    spec: TensorSpec
    offset: int
    """Where the elements begin."""


def read_header(source: Source) -> Header:
    """The array of a file; its elements end where the file does."""
    first = bytes(source.read(0, min(_USUAL, source.size)))
    usual = len(first) == _USUAL and first.startswith(_USUAL_START)
    text, offset = (first[len(_USUAL_START) :], _USUAL) if usual else _text(source)
    try:
        spec = _parse(text)
    except FlyweightError as error:
        raise error.at(file=source.name) from None
    here, there = offset + spec.nbytes, source.size
    if here > there:
        raise MalformedError(
            f"{spec} needs {spec.nbytes} bytes but {there - offset} are left",
            code="E_PAST_END", file=source.name, offset=offset, hint=CUT_SHORT,
        )  # fmt: skip
    if here < there:
        raise MalformedError(f"{there - here} bytes after the array", code="E_TRAILING", file=source.name, offset=here)
    return Header(spec, offset)


def _text(source: Source) -> tuple[bytes, int]:
    """The dictionary of any header, and where it ends."""
    cursor = Cursor(source, end=MAX_HEADER + 12)
    if bytes(cursor.take(6, "a .npy file")) != MAGIC:
        raise MalformedError("not a .npy file", code="E_NPY_MAGIC", file=source.name, offset=0)
    major, minor = cursor.u8("the version"), cursor.u8("the version")
    if major not in (1, 2, 3) or minor:
        raise MalformedError(f"unknown .npy version {major}.{minor}", code="E_NPY_VERSION", file=source.name, offset=6)
    length = int(cursor.scalar("u16" if major == 1 else "u32", "the length of the header"))
    if length > MAX_HEADER:
        raise LimitError(f"a header of {length} bytes exceeds {MAX_HEADER}", code="E_NPY_HEADER", file=source.name, offset=8)
    return bytes(cursor.take(length, "the header")), cursor.offset


@lru_cache(maxsize=1024)
def _parse(raw: bytes) -> TensorSpec:
    """Remembered: the arrays of a model have a few shapes."""

    def malformed(message: str, code: str = "E_NPY_HEADER") -> MalformedError:
        return MalformedError(message, code=code)

    text = utf8(raw, "the header")
    found: dict[str, str] = {}
    at, end = (1, ",") if text.startswith("{") else (0, "")
    while end == ",":
        item = _ITEM.match(text, at)
        if item is None or item["key"] in found:
            raise malformed("the header is not a dictionary of descr, fortran_order and shape")
        key = item["key"]
        value = item[{"descr": "descr", "fortran_order": "flag", "shape": "shape"}[key]]
        if value is None:
            raise malformed(f"'{key}' has the wrong type")
        found[key] = value
        at, end = item.end(), item["end"]
    if len(found) != 3 or text[at:].strip():
        raise malformed("the header is not a dictionary of descr, fortran_order and shape")
    if found["descr"] not in DESCRS:
        raise malformed(f"elements of type '{found['descr']}' are not allowed here", "E_DTYPE")
    if found["fortran_order"] == "True":
        raise malformed("the array is in Fortran (column) order", "E_FORTRAN")
    dims = [dim.strip() for dim in found["shape"].split(",")]
    if len(dims) > 1 and not dims[-1]:  # the comma after the last
        dims.pop()
    dims = [] if dims == [""] else dims
    if any(not dim.isdecimal() or len(dim) > _DIGITS for dim in dims):
        raise malformed("the shape is not a tuple of integers", "E_SHAPE")
    return TensorSpec(check_shape([int(dim) for dim in dims]), DESCRS[found["descr"]])


def build_header(spec: TensorSpec) -> bytes:
    """The bytes NumPy writes before the elements."""
    text = f"{{'descr': '{_NAMES[spec.dtype]}', 'fortran_order': False, 'shape': {spec.shape!r}, }}"
    text += " " * (_GROWTH - len(str(spec.shape[0])) if spec.shape else 0)
    text += " " * (-(len(MAGIC) + 4 + len(text) + 1) % 64) + "\n"
    return MAGIC + bytes([1, 0]) + len(text).to_bytes(2, "little") + text.encode()
