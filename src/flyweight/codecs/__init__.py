"""Codecs: how numbers become stored parts and come back.

A codec is one file and one line in CODECS, imported when a tensor has it. Containers never import this package: a tensor
whose codec is not in the table still survives a remux.
"""

from __future__ import annotations

from flyweight.codecs.codec import Array, Codec, Grid, Parts, take_rows
from flyweight.foundation.errors import MalformedError
from flyweight.foundation.ggml_types import ggml_types_with
from flyweight.foundation.lazy_table import Table
from flyweight.foundation.tensor import CodecSpec

__all__ = ["CODECS", "Array", "Codec", "Grid", "Parts", "codec_for", "known", "take_rows", "without_per_tensor"]

CODECS: Table[type[Codec]] = Table(
    __name__,
    {
        "raw": "raw:Raw",
        "affine": "affine:Affine",
        "palette": "palette:Palette",
        "hqq": "hqq:Hqq",
        "blockwise": "blockwise:Blockwise",
        "scaled": "scaled:Scaled",
        **{name: f"ggml:{name.upper()}" for name in ggml_types_with("decode")},
        "lossless": "lossless:Lossless",
        "lossless_small": "lossless_small:LosslessSmall",
        "sparse": "sparse:Sparse",
        "sparse_codes": "sparse_codes:SparseCodes",
        "fp8": "floats:Fp8",
        "fp8_scalar": "floats:Fp8Scalar",
        "f8q8": "f8q8:F8q8",
        "mxfp4_split": "floats:Mxfp4Split",
        "sign": "sign:Sign",
        "corrected": "corrected:Corrected",
        "tabled": "tabled:Tabled",
        "masked": "masked:Masked",
        "astc": "astc:Astc",
        "excess": "excess:Excess",
        "nf4": "nf4:Nf4",
        "stepped": "stepped:Stepped",
        "woven": "woven:Woven",
    },
)


def known(spec: CodecSpec) -> bool:
    return spec.name in CODECS


def without_per_tensor(spec: CodecSpec) -> CodecSpec:
    """The spec without the parameters that are another for every tensor, at any depth: codecs as people compare them."""
    per_tensor = CODECS[spec.name].per_tensor if spec.params and known(spec) else ()
    params = {key: value for key, value in spec.params.items() if key not in per_tensor}
    nested = {key: without_per_tensor(value) for key, value in params.items() if isinstance(value, CodecSpec)}
    return CodecSpec(spec.name, params | nested)


def codec_for(spec: CodecSpec) -> Codec:
    """The codec a spec names. Unknown names are unsupported; bad parameters are malformed."""
    cached = _codecs.get(id(spec))
    if cached is not None:
        return cached[1]
    if spec.name not in CODECS:
        raise spec.unreadable()
    try:
        codec: Codec = CODECS[spec.name](**spec.params)
    except (TypeError, ValueError) as error:
        raise MalformedError(f"bad parameters for codec {spec.name}: {error}", code="E_CODEC_PARAMS") from None
    if len(_codecs) >= _MOST_CODECS:
        _codecs.clear()
    _codecs[id(spec)] = spec, codec
    return codec


_MOST_CODECS = 256
_codecs: dict[int, tuple[CodecSpec, Codec]] = {}
"""Codecs by the identity of the spec, which is kept with it: the layers of a model share a few. Not by its value, in which
True is 1 and 4.0 is 4."""
