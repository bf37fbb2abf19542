"""Named bit orders: how codes of 1 to 8 bits are packed into bytes.

A packing works on rows: codes (rows, count) become bytes (rows, width) and come back. With codes
a, b, c … of `bits` bits each, most significant bit of a byte first:

    little       …b a            a stream of bits, first code in the low bits; a code may straddle bytes
    big          a b…            the same stream, first code in the high bits
    halves-low   [n/2 + j][j]    the row is cut into 8 / bits runs, stacked; the first run lies in the low bits
    halves-high  [j][n/2 + j]    the same, the first run in the high bits

The stacked orders need a width that divides 8, so that every byte holds one code of each run.
Bits that no code uses are written as zero and ignored when read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from flyweight import kernels
from flyweight.foundation.errors import UnsupportedError

Array = np.ndarray[Any, Any]


class Packing(NamedTuple):
    """One bit order: the widths it exists for, bytes per row, and both directions."""

    bits: frozenset[int]
    width: Callable[[int, int], int]
    """(bits, count) → bytes per row."""
    pack: Callable[[Array, int], Array]
    """(codes (rows, count), bits) → bytes (rows, width)."""
    unpack: Callable[[Array, int, int], Array]
    """(bytes (rows, width), bits, count) → codes (rows, count)."""


def _stream_width(bits: int, count: int) -> int:
    return (bits * count + 7) // 8


def _pack_little(codes: Array, bits: int) -> Array:
    packed = np.zeros((codes.shape[0], _stream_width(bits, codes.shape[1])), np.uint8)
    kernels.pack_bits(codes, bits, packed)
    return packed


def _unpack_little(packed: Array, bits: int, count: int) -> Array:
    codes = np.zeros((packed.shape[0], count), np.uint8)
    kernels.unpack_bits(packed, bits, codes)
    return codes


def _pack_big(codes: Array, bits: int) -> Array:
    rows, count = codes.shape
    planes = np.unpackbits(codes[:, :, None], axis=2)[:, :, 8 - bits :]
    return np.packbits(planes.reshape(rows, count * bits), axis=1)


def _unpack_big(packed: Array, bits: int, count: int) -> Array:
    rows = packed.shape[0]
    planes = np.zeros((rows, count, 8), np.uint8)
    planes[:, :, 8 - bits :] = np.unpackbits(packed, axis=1, count=count * bits).reshape(rows, count, bits)
    return np.packbits(planes, axis=2).reshape(rows, count)


def _stacked_width(bits: int, count: int) -> int:
    return -(-count // (8 // bits))


def _shifts(bits: int, *, low_first: bool) -> Array:
    """How far each run is shifted into its byte, for broadcasting over (rows, runs, width)."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (shifts if low_first else shifts[::-1])[:, None]


def _pack_stacked(codes: Array, bits: int, *, low_first: bool) -> Array:
    rows, count = codes.shape
    runs, width = 8 // bits, _stacked_width(bits, count)
    padded = np.zeros((rows, runs * width), np.uint8)
    padded[:, :count] = codes
    stacked = padded.reshape(rows, runs, width) << _shifts(bits, low_first=low_first)
    packed: Array = np.bitwise_or.reduce(stacked, axis=1, dtype=np.uint8)
    return packed


def _unpack_stacked(packed: Array, bits: int, count: int, *, low_first: bool) -> Array:
    width = _stacked_width(bits, count)
    stacked = packed[:, None, :width] >> _shifts(bits, low_first=low_first) & np.uint8(2**bits - 1)
    return np.ascontiguousarray(stacked.reshape(packed.shape[0], 8 // bits * width)[:, :count])


def _stacked(*, low_first: bool) -> Packing:
    return Packing(
        frozenset({1, 2, 4, 8}),
        _stacked_width,
        lambda codes, bits: _pack_stacked(codes, bits, low_first=low_first),
        lambda packed, bits, count: _unpack_stacked(packed, bits, count, low_first=low_first),
    )


PACKINGS: Mapping[str, Packing] = MappingProxyType(
    {
        "little": Packing(frozenset(range(1, 9)), _stream_width, _pack_little, _unpack_little),
        "big": Packing(frozenset(range(1, 9)), _stream_width, _pack_big, _unpack_big),
        "halves-low": _stacked(low_first=True),
        "halves-high": _stacked(low_first=False),
    }
)


def supports(name: str, bits: int) -> bool:
    """Whether there is such a packing and it exists for codes of `bits` bits."""
    return name in PACKINGS and bits in PACKINGS[name].bits


def _packing(name: str, bits: int) -> Packing:
    if not supports(name, bits):
        known = ", ".join(PACKINGS)
        raise UnsupportedError(f"no packing '{name}' of {bits} bits", code="E_PACKING", hint=f"packings: {known}")
    return PACKINGS[name]


def packed_width(name: str, bits: int, count: int) -> int:
    """Bytes that a row of `count` codes takes."""
    return _packing(name, bits).width(bits, count)


def pack(name: str, codes: Array, bits: int) -> Array:
    """Bytes for codes below 2**bits, (rows, count) uint8."""
    order = _packing(name, bits)
    if codes.size and int(codes.max()) >> bits:
        raise ValueError(f"code {int(codes.max())} does not fit {bits} bits")
    return order.pack(np.ascontiguousarray(codes, np.uint8), bits)


def unpack(name: str, packed: Array, bits: int, count: int) -> Array:
    """The first `count` codes of each row of bytes; a row may be longer than it needs to be."""
    order = _packing(name, bits)
    width = order.width(bits, count)
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] < width:
        raise ValueError(f"{count} codes of {bits} bits need rows of {width} bytes, not {packed.dtype}{packed.shape}")
    return order.unpack(np.ascontiguousarray(packed[:, :width]), bits, count)


def repack(source: str, target: str, packed: Array, bits: int, count: int) -> Array:
    """The same codes in another order."""
    return pack(target, unpack(source, packed, bits, count), bits)
