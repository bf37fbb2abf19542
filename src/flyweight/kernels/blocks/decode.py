"""Blocks of ggml to values. Products and sums are rounded to f32 one by one, in the order written here and in `fields`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.kernels.blocks.fields import FORMS
from flyweight.kernels.blocks.layout import E2M1_VALUES, f16_field, half_e8m0, planes_of
from flyweight.kernels.checks import U8, Array, check, check_values
from flyweight.kernels.registry import kernel
from flyweight.kernels.streams.float_casts import also_to_bf16


def _decoder(definition: Callable[[Array, Array], None]) -> Callable[[Array, Array], None]:
    """The checked kernel of a definition, by whose name the type is known."""
    own = GGML_TYPES[definition.__name__.removeprefix("decode_")]
    registered = kernel(also_to_bf16(definition))

    @wraps(definition)
    def decode(blocks: Array, out: Array) -> None:
        check("blocks", blocks, U8, (None, own.nbytes))
        registered.run(blocks, check_values(out, (len(blocks), own.elements)))

    decode.__doc__ = f"Values of {own.name} blocks. blocks: u8 (n, {own.nbytes}), out: f32 or bf16 (n, {own.elements})."
    return decode


def _by_fields(name: str) -> Callable[[Array, Array], None]:
    """The decoder of a type whose values are `scale · level[code] + bias`."""
    form = FORMS[name]

    def decode(blocks: Array, out: Array) -> None:
        fields = form.read(blocks)
        scale, bias, values = fields.scale, fields.bias, form.levels[fields.codes]
        grouped = (*scale.shape, out.shape[1] // scale.shape[1])
        np.multiply(scale[:, :, None], values.reshape(grouped), out=out.reshape(grouped))
        if bias is not None:
            np.add(out.reshape(grouped), bias[:, :, None], out=out.reshape(grouped))

    decode.__name__ = decode.__qualname__ = f"decode_{name}"
    return _decoder(decode)


globals().update({f"decode_{name}": _by_fields(name) for name in FORMS})


@_decoder
def decode_q8_1(blocks: Array, out: Array) -> None:
    np.multiply(f16_field(blocks, 0), blocks[:, 4:36].view(np.int8).astype(np.float32), out=out)


@_decoder
def decode_mxfp4(blocks: Array, out: Array) -> None:
    np.multiply(half_e8m0(blocks[:, 0:1]), E2M1_VALUES[planes_of(blocks[:, 1:17], 16, 4)], out=out)


@_decoder
def decode_q8_k(blocks: Array, out: Array) -> None:
    np.multiply(blocks[:, 0:4].view("<f4"), blocks[:, 4:260].view(np.int8).astype(np.float32), out=out)
