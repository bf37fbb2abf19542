"""Little-endian bit streams, one to a row: element j is the `bits` bits from bit j · bits up."""

from __future__ import annotations

import numpy as np

from flyweight.kernels.checks import U8, Array, check, check_stream
from flyweight.kernels.registry import kernel


@kernel
def _unpack_bits(packed: Array, bits: int, out: Array) -> None:
    rows, count = out.shape
    stream = np.unpackbits(packed, axis=1, count=count * bits, bitorder="little")
    out[...] = np.packbits(stream.reshape(rows, count, bits), axis=2, bitorder="little").reshape(rows, count)


@kernel
def _pack_bits(codes: Array, bits: int, out: Array) -> None:
    rows, count = codes.shape
    stream = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little").reshape(rows, count * bits)
    packed = np.packbits(stream, axis=1, bitorder="little")
    out[:, : packed.shape[1]] = packed
    out[:, packed.shape[1] :] = 0


def unpack_bits(packed: Array, bits: int, out: Array) -> None:
    """Codes of a little-endian bit stream per row. packed: u8 (rows, nbytes), out: u8 (rows, count)."""
    check("packed", packed, U8, (None, None))
    check("out", out, U8, (len(packed), None), written=True)
    check_stream(bits, out.shape[1], packed.shape[1])
    _unpack_bits.run(packed, bits, out)


def pack_bits(codes: Array, bits: int, out: Array) -> None:
    """The inverse; higher bits of codes are dropped, a row is zero to its end. codes: u8 (rows, count), out: (rows, nbytes)."""
    check("codes", codes, U8, (None, None))
    check("out", out, U8, (len(codes), None), written=True)
    check_stream(bits, codes.shape[1], out.shape[1])
    _pack_bits.run(codes, bits, out)
