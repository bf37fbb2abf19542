"""Blocks of ggml: decoding, nearest encoding, and encoding that searches for scales."""

from __future__ import annotations

from collections.abc import Callable

from flyweight.kernels.dispatch import BLOCKS, F32, U8, Array, check, check_numbers, check_values, running


def _decoder(name: str) -> Callable[[Array, Array], None]:
    size, nbytes = BLOCKS[name]
    kernel = f"decode_{name}"

    def decode(blocks: Array, out: Array) -> None:
        check("blocks", blocks, U8, (None, nbytes))
        running[kernel](blocks, check_values(out, (len(blocks), size)))

    decode.__name__ = decode.__qualname__ = kernel
    decode.__doc__ = f"Values of {name} blocks. blocks: u8 (n, {nbytes}), out: f32 or bf16 (n, {size})."
    return decode


def _encoder(name: str) -> Callable[[Array, Array], None]:
    size, nbytes = BLOCKS[name]
    kernel = f"encode_{name}"

    def encode(values: Array, blocks: Array) -> None:
        numbers = check_numbers(values, (None, size))
        check("blocks", blocks, U8, (len(values), nbytes), written=True)
        running[kernel](numbers, blocks)

    encode.__name__ = encode.__qualname__ = kernel
    encode.__doc__ = f"Blocks of {name} by nearest rounding. values: f32 or bf16 (n, {size}), blocks: u8 (n, {nbytes})."
    return encode


def _searcher(name: str) -> Callable[[Array, Array, Array], None]:
    size, nbytes = BLOCKS[name]
    kernel = f"encode_{name}"

    def encode(values: Array, weights: Array, blocks: Array) -> None:
        check("values", values, F32, (None, size))
        check("weights", weights, F32, (None, size))
        check("blocks", blocks, U8, (len(values), nbytes), written=True)
        if not len(weights):
            raise ValueError("weights must have a row")
        running[kernel](values, weights, blocks)

    encode.__name__ = encode.__qualname__ = kernel
    encode.__doc__ = (
        f"Blocks of {name} of least weighted error that a search finds. values: f32 (n, {size}), "
        f"weights: f32 (m, {size}), row i mod m for block i, positive and finite, blocks: u8 (n, {nbytes})."
    )
    return encode


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
encode_iq4_nl = _searcher("iq4_nl")
encode_q8_k = _searcher("q8_k")
