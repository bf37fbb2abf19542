"""Codecs: how numbers become stored parts and come back.

A codec is one file and one line in CODECS. Containers never import this package: a tensor whose
codec is not in the table still survives a remux.
"""

from __future__ import annotations

from flyweight.codecs import ggml
from flyweight.codecs.affine import Affine
from flyweight.codecs.astc import Astc
from flyweight.codecs.base import Array, Codec, Grid, Parts, take_rows
from flyweight.codecs.corrected import Corrected
from flyweight.codecs.excess import Excess
from flyweight.codecs.floats import Fp8, Mxfp4Split
from flyweight.codecs.hqq import Hqq
from flyweight.codecs.lossless import Lossless
from flyweight.codecs.masked import Masked
from flyweight.codecs.nf4 import Nf4
from flyweight.codecs.palette import Palette
from flyweight.codecs.raw import Raw
from flyweight.codecs.sign import Sign
from flyweight.codecs.sparse import Sparse
from flyweight.codecs.tabled import Tabled
from flyweight.errors import MalformedError, UnsupportedError
from flyweight.tensor import CodecSpec

__all__ = ["CODECS", "Array", "Codec", "Grid", "Parts", "codec_for", "known", "take_rows"]

CODECS: tuple[type[Codec], ...] = (
    Raw,
    Affine,
    Palette,
    Hqq,
    *ggml.CODECS,
    Lossless,
    Sparse,
    Fp8,
    Mxfp4Split,
    Sign,
    Corrected,
    Tabled,
    Masked,
    Astc,
    Excess,
    Nf4,
)

_BY_NAME = {codec.name: codec for codec in CODECS}


def known(spec: CodecSpec) -> bool:
    return spec.name in _BY_NAME


def codec_for(spec: CodecSpec) -> Codec:
    """The codec a spec names. Unknown names are unsupported; bad parameters are malformed."""
    try:
        kind = _BY_NAME[spec.name]
    except KeyError:
        raise UnsupportedError(
            f"no codec named '{spec.name}'", code="E_UNKNOWN_CODEC", hint="the tensor can be copied, not decoded"
        ) from None
    try:
        return kind(**spec.params)
    except (TypeError, ValueError) as error:
        raise MalformedError(f"bad parameters for codec {spec.name}: {error}", code="E_CODEC_PARAMS") from None
