"""Every registered codec with parameters worth trying, and values and stored parts to try it on.

A codec joins by being in CODECS; one with parameters also needs a line in SAMPLES.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs import CODECS, Codec
from flyweight.codecs.astc import Astc
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import CodecSpec, Param, TensorSpec


def codec(name: str, **params: Param) -> CodecSpec:
    return CodecSpec(name, params)


FLOAT_PAIRS = (("f16", "f16"), ("f16", "f32"), ("f32", "f16"))
BLOCKS = ((0, 0), (1, 0), (1, 128), (2, 100))
# Parameters to try, for codecs that have some.
SAMPLES = {
    "affine": [
        *({"bits": bits, "group": 64} for bits in range(1, 9)),
        *({"bits": 4, "group": 32, "form": form} for form in ("scale_zero", "symmetric")),
        *({"bits": 3, "group": 48, "form": form, "scale": "f16"} for form in ("scale_bias", "scale_zero", "symmetric")),
        *({"bits": 5, "group": 0, "form": form, "scale": "bf16"} for form in ("scale_bias", "scale_zero", "symmetric")),
        *({"bits": 4, "group": 64, "packing": packing} for packing in ("big", "halves-low", "halves-high")),
        *({"bits": 6, "group": 128, "word": "u32", "axis": axis} for axis in (-1, 0)),
        {"bits": 8, "group": 32, "scale": "bf16"},
    ],
    "palette": [
        *({"bits": bits} for bits in (1, 2, 3, 4, 6, 8)),
        *({"bits": 4, "group": 2, "axis": axis, "table": table} for axis in (0, -1) for table in ("f32", "bf16")),
        *({"bits": 4, "vector": 2, "vector_axis": axis, "group": 4, "axis": 0} for axis in (0, -1)),
        {"bits": 8, "vector": 4, "vector_axis": -1, "table": "f32"},
        {"bits": 4, "table": "i8", "scale": "f16"},
        *(
            {"bits": 6, "group": 8, "table": kind, "scale": "f16", "offset": kind, "scale_per": "tensor"}
            for kind in ("i8", "u8")
        ),
        {"bits": 4, "group": 1, "axis": -1, "table": "f16", "scale": "f16"},
    ],
    "stepped": [*({"bits": bits} for bits in range(2, 9)), {"bits": 3, "group": 48}, {"bits": 4, "group": 7}],
    "woven": [{"bits": bits} for bits in (2, 3, 4)],
    "hqq": [
        *({"bits": bits, "group": 64} for bits in (1, 2, 3, 4, 8)),
        *({"bits": bits, "group": group, "axis": 1} for bits, group in ((1, 32), (3, 64), (4, 64), (8, 16))),
        *({"bits": 4, "group": 64, "scale": scale, "axis": axis} for scale, axis in (("f16", 1), ("bf16", 0))),
    ],
    "blockwise": [
        *({"data": data, "block": block} for data in ("i8", "i4") for block in ("", "1", "1x32", "0x64")),
        *({"data": data, "block": block, "offset": "data"} for data in ("i8", "u8", "i4", "u4") for block in ("1", "1x32")),
        *({"data": "u4", "block": "1", "scale": scale, "offset": offset} for scale, offset in FLOAT_PAIRS),
        {"data": "i8", "block": "1", "scale": "f32"},
        {"data": "i4", "block": "1x32", "scale": "f32", "offset": "f32"},
        {"data": "f16", "block": "1", "scale": "f32"},
        {"data": "f32", "block": "1x16", "scale": "f16", "offset": "f16"},
    ],
    "scaled": [
        {"inner": codec("palette", bits=4)},
        {"inner": codec("palette", bits=6, vector=2, group=2, axis=-1), "block": "0x1"},
        {"inner": codec("palette", bits=3, table="f32"), "block": "", "scale": "f32"},
        {"inner": codec("blockwise", data="i8"), "block": "1x32"},
        {"inner": codec("sparse_codes", inner=codec("palette", bits=2))},
        {"inner": codec("sparse", form="stream"), "block": "1x64"},
    ],
    "sparse": [
        {},
        {"form": "indices"},
        {"form": "stream"},
        {"form": "stream", "inner": codec("palette", bits=2)},
        {"form": "indices", "index": "i64", "inner": "lossless"},
        {"inner": codec("affine", bits=8, group=32)},
        {"inner": codec("masked", inner=codec("palette", table="f32"), block=4)},
    ],
    "sparse_codes": [
        {"inner": codec("blockwise", data=data, block=block, offset=offset)}
        for data, block, offset in (("i8", "1", ""), ("u4", "1x32", "data"), ("i4", "", ""), ("f16", "1", ""))
    ]
    + [
        {"inner": codec("palette", **params)}
        for params in ({"bits": 4}, {"bits": 3, "group": 2, "axis": -1}, {"bits": 6, "vector": 2})
    ],
    "fp8": [
        *({"format": format_, "rows": rows, "columns": columns} for format_ in ("e4m3", "e5m2") for rows, columns in BLOCKS),
        *({"scale": scale, "divide": divide, "columns": 128} for scale in ("f32", "f16", "bf16") for divide in (False, True)),
    ],
    "astc": [
        {"width": 4, "height": 4},
        {"width": 6, "height": 6, "id": 2**63 - 1},
        {"width": 8, "height": 5},
        {"width": 12, "height": 12},
    ],
    "sign": [{}, {"scale": "f16", "packing": "big"}, {"scale": "bf16", "packing": "halves-low"}],
    "tabled": [
        *({"bits": bits, "length": length} for bits in (4, 2) for length in (0, 32, 64, 512)),
        *({"bits": bits, "length": 48, "id": 2**63 - 1} for bits in (4, 2)),
    ],
    "masked": [
        {},
        {"block": 20},
        {"inner": "lossless", "block": 128},
        *({"inner": codec("tabled", bits=bits, length=32), "block": block} for bits, block in ((4, 64), (2, 32), (4, 192))),
        {"inner": "q4_0", "block": 32},
        {"inner": codec("sparse", inner=codec("masked", inner="lossless", block=8)), "block": 64},
    ],
    "excess": [
        {},
        {"group": 0},
        {"bits": 3, "excess": 3, "top": 7, "group": 64, "flat": True, "zeros": True},
        {"bits": 3, "excess": 3, "top": 7, "group": 48, "flat": True},
        {"bits": 8, "excess": 128, "top": 255, "group": 100},
    ],
    "nf4": [{}, {"group": 0}, {"group": 100}],
    "corrected": [
        {"rank": 2, "inner": "q8_0"},
        {"rank": 0, "outliers": 3, "factor": "f32", "inner": "q8_0"},
        {"rank": 3, "outliers": 5, "inner": codec("affine", bits=3, group=64), "factor": "bf16"},
        {"rank": 1, "inner": codec("corrected", inner=codec("masked", inner="q8_0", block=32), rank=1, outliers=2)},
    ],
}
INSTANCES: list[Codec] = [kind(**params) for kind in CODECS for params in SAMPLES.get(kind.name, [{}])]
ENCODERS = [codec for codec in INSTANCES if codec.encodes]

_WITHOUT_ROWS = {
    "palette": "indices are one stream over the whole tensor",
    "hqq": "a group is spread over the whole tensor",
    "lossless": "codes are one stream over the whole tensor",
    "lossless_small": "codes are one stream over the whole tensor",
    "woven": "a weight depends on the codes above it too",
    "sparse": "stored values are one vector",
    "sparse_codes": "stored codes are one stream",
    "corrected": "the right factor belongs to all rows",
    "astc": "a block has several rows",
}
# Laws that cannot apply to a codec, and why. Any other law has to apply to at least one instance of every codec: one that
# passes because nothing it speaks of ever happened is a failure, and so is an exemption that is not needed.
EXEMPT: dict[str, dict[str, str]] = {
    "NaN": {
        "lossless_small": "an exponent cannot be changed without breaking its chunk; test_lossless_small encodes NaN",
        **dict.fromkeys(
            ("mxfp4", "mxfp4_split"), "the scale that means NaN decodes to a number, as in ggml; test_floats has it"
        ),
    },
    "rows stand alone": _WITHOUT_ROWS,
    "rows encode alone": {**_WITHOUT_ROWS, "fp8_scalar": "all rows share a scale"},
    "generations settle": {
        "iq4_nl": "a search: it may find another block of nearly the same error",
        "iq4_xs": "a search, as iq4_nl",
        "woven": "a search, and its scale is fitted to what it finds",
        "stepped": "the ends of a grid move to the nearest step and minimum in every generation",
        "corrected": "the correction is fitted to what the inner codec loses, which is anew in every generation",
        "astc": "a search by an encoder that is not ours",
        "blockwise": "the ends of a block are rounded to f16, and steps of 8 bits between them move with that",
    },
    "some grids are found": {
        "excess": "its offset is rounded once more on the way to the grid, and `from_grid` refuses (docs/formats/excess.md)",
    },
}


def settle(law: str, name: str, applied: bool) -> None:
    """Fail where a law did not apply to any instance of a codec, unless that is stated; and where it is, but did."""
    why = EXEMPT.get(law, {}).get(name)
    assert applied or why, f"'{law}' never applied to {name}: make it, or state why it cannot in EXEMPT"
    assert not (applied and why), f"'{law}' applies to {name}: take it out of EXEMPT"


DTYPES = list(DType)


def named(codecs: list[Codec]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("codec", codecs, ids=lambda codec: str(codec.spec))


def by_name(codecs: list[Codec]) -> pytest.MarkDecorator:
    """All instances of a codec together."""
    names = dict.fromkeys(codec.name for codec in codecs)
    together = [[codec for codec in codecs if codec.name == name] for name in names]
    return pytest.mark.parametrize("codecs", together, ids=names)


def dtypes(codec: Codec) -> list[DType]:
    """The element types a codec stores."""
    found = []
    for dtype in DTYPES:
        with suppress(UnsupportedError):
            codec.layout(TensorSpec((256,), dtype))
            found.append(dtype)
    return found


def plausible(codec: Codec, spec: TensorSpec, seed: int) -> tuple[Codec, dict[str, np.ndarray]]:
    """Parts that decode: noise, unless the parts must agree with one another."""
    if isinstance(codec, Astc):
        return codec, texture(codec, spec, seed)
    if codec.decodes_any_bytes:
        return codec, noise(codec, spec, seed)
    values = weights(spec, seed).astype(spec.dtype.numpy)
    fitted = codec.fit(spec, values)
    return fitted, dict(fitted.encode(spec, values))


def stored_shape(part: TensorSpec) -> tuple[int, ...]:
    return (part.nbytes,) if part.dtype.bits % 8 else part.shape


def noise(codec: Codec, spec: TensorSpec, seed: int) -> dict[str, np.ndarray]:
    """Parts of the right layout, filled with any bytes at all."""
    rng = np.random.default_rng(seed)
    return {
        name: np.frombuffer(rng.bytes(part.nbytes), part.dtype.storage).reshape(stored_shape(part))
        for name, part in codec.layout(spec).items()
    }


def texture(codec: Astc, spec: TensorSpec, seed: int) -> dict[str, np.ndarray]:
    """Noise, with a block of one colour wherever it is no legal one, and a pair that has the codec's id."""
    parts = noise(codec, spec, seed)
    blocks = parts["blocks"].reshape(-1, 16).copy()
    illegal = np.empty((1, len(blocks)), np.uint8)
    values = np.empty((codec.height, codec.width * len(blocks)), np.float32)
    kernels.astc_decode(blocks.reshape(1, -1)[:1], codec.width, codec.height, 1.0, 0.0, values, illegal)
    blocks[illegal[0] == 1, :8] = np.frombuffer(b"\xfc\xfd" + b"\xff" * 6, np.uint8)
    scale, zero = np.random.default_rng(seed).standard_normal(2).astype("<f4") ** 2
    pair = np.concatenate([np.array([codec.id], "<u8").view("<u4"), np.array([scale, -zero], "<f4").view("<u4")])
    return {"blocks": blocks.reshape(parts["blocks"].shape), "pair": pair}


def weights(spec: TensorSpec, seed: int = 5) -> np.ndarray:
    """Values like those of a model: rows of different magnitude, some of them constant or zero."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(spec.shape) * 10.0 ** rng.integers(-3, 2, (*spec.shape[:-1], 1))
    flat = values.reshape(spec.rows, spec.columns)
    flat[1:2, : spec.columns // 2] = 0
    flat[2:3] = 0.25
    return values.astype(np.float32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
