"""A layer of UQFF as both generations have it: a type, and named fields in order.

    type            fields
    0 GGUF          dtype u32 (of ggml), shape dims, weight bytes
    1 unquantized   weight
    2 HQQ           weight, scales, zeros, shape dims, bits u8, group_size u32, axis u8, optimization_steps u32, round_zeros u8,
                    channel_wise u8
    3 FP8           weight, dequant_w_scale f32, dequant_x_scale f32, quant_scale f32, dtype u32 (always that of F8E4M3)
    4 AFQ           weight, scales, biases, bits u8, group_size u8
    5 F8Q8          num_blocks u32, shape dims, weight bytes
    6 MXFP4         weight, scales

A field of no kind named here is a tensor with a type and shape of its own. How fields are stored is each generation's own
matter (`uqff_directory`, `blob`); what they mean is here. Any layer may have a bias, which is a tensor of the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from flyweight.containers.carried import Carried
from flyweight.foundation.cursor import check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.ggml_types import GGML_TYPES
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, Param, TensorSpec

GGUF, UNQUANTIZED, HQQ, FP8, AFQ, F8Q8, MXFP4 = range(7)
TYPE_NAMES = ("gguf", "unquantized", "hqq", "fp8", "afq", "f8q8", "mxfp4")

TENSOR, BYTES, DIMS = "tensor", "bytes", "dims"
NUMBERS = {"u8": DType.U8, "u32": DType.U32}
"""Kinds of fields that are one integer. `f32` is one number too, but one that a codec has as a part."""

FIELDS: Mapping[int, Mapping[str, str]] = {
    GGUF: {"dtype": "u32", "shape": DIMS, "weight": BYTES},
    UNQUANTIZED: {"weight": TENSOR},
    HQQ: {
        "weight": TENSOR, "scales": TENSOR, "zeros": TENSOR, "shape": DIMS, "bits": "u8", "group_size": "u32", "axis": "u8",
        "optimization_steps": "u32", "round_zeros": "u8", "channel_wise": "u8",
    },
    FP8: {"weight": TENSOR, "dequant_w_scale": "f32", "dequant_x_scale": "f32", "quant_scale": "f32", "dtype": "u32"},
    AFQ: {"weight": TENSOR, "scales": TENSOR, "biases": TENSOR, "bits": "u8", "group_size": "u8"},
    F8Q8: {"num_blocks": "u32", "shape": DIMS, "weight": BYTES},
    MXFP4: {"weight": TENSOR, "scales": TENSOR},
}  # fmt: skip
"""Name → kind, in the order of 0.x."""

STANDARD_TYPES = (
    DType.U8, DType.U32, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32, DType.F64, DType.I16, DType.F8_E4M3,
)  # fmt: skip
"""The element types of tensors, each at its code."""
FP8_CODE = STANDARD_TYPES.index(DType.F8_E4M3)

BLOCKS = {each.id: name for name, each in GGML_TYPES.items() if each.id <= 15}
"""The block types of ggml that mistral.rs writes."""
DENSE = {0: DType.F32, 1: DType.F16, 30: DType.BF16}
AFQ_BITS, AFQ_GROUPS = (2, 3, 4, 6, 8), (32, 64, 128)
HQQ_BITS = (1, 2, 3, 4, 8)
SCALES = (DType.F32, DType.F16, DType.BF16)
F8Q8_BLOCK, F8Q8_NBYTES, MXFP4_BLOCK = 32, 33, 32
HQQ_SETTINGS = {"optimization_steps": 10, "round_zeros": 0, "channel_wise": 1}
"""How the codes were found: these in every file that mistral.rs writes. Nothing that decodes them asks."""

_PARTS = {
    HQQ: {"codes": "weight", "scale": "scales", "zero": "zeros"},
    FP8: {"codes": "weight", "scale": "dequant_w_scale", "x_scale": "dequant_x_scale", "quant_scale": "quant_scale"},
    AFQ: {"codes": "weight", "scale": "scales", "bias": "biases"},
    MXFP4: {"codes": "weight", "scale": "scales"},
}
_BLOCK = {name: (GGML_TYPES[name].elements, GGML_TYPES[name].nbytes) for name in BLOCKS.values()}
_BLOCK["f8q8"] = F8Q8_BLOCK, F8Q8_NBYTES
_TYPES = {
    **dict.fromkeys(BLOCKS.values(), GGUF), "raw": UNQUANTIZED, "hqq": HQQ, "fp8_scalar": FP8, "affine": AFQ, "f8q8": F8Q8,
    "mxfp4_split": MXFP4,
}  # fmt: skip
_AFFINE: dict[str, Param] = {"form": "scale_bias", "axis": -1, "packing": "little", "word": "u32"}


class Stored(NamedTuple):
    """A tensor in a file."""

    spec: TensorSpec
    extent: Extent


class Layer(NamedTuple):
    """What a file says of one layer."""

    type: int
    arrays: Mapping[str, Stored]
    """Fields that are tensors, bytes or f32."""
    numbers: Mapping[str, int]
    shape: tuple[int, ...] = ()
    """The field `shape`, for the types that have it."""


class LayerForm(NamedTuple):
    """How a tensor is stored as a layer: the part that is in each field, and as what; and the numbers beside it."""

    type: int
    arrays: Mapping[str, tuple[str, TensorSpec]]
    numbers: Mapping[str, int]
    shape: tuple[int, ...] = ()


def _malformed(message: str) -> MalformedError:
    return MalformedError(message, code="E_LAYER")


# Reading ------------------------------------------------------------------------------------------


def entry_of(name: str, layer: Layer) -> Entry:
    """The tensor that a layer is; that its parts agree with its codec is for who opens the checkpoint to check."""
    spec, codec = _READERS[layer.type](layer)
    if layer.type in _PARTS:
        fields = _PARTS[layer.type]
        parts: Layout = {part: layer.arrays[field].spec for part, field in fields.items()}
    else:
        part = "data" if codec == RAW else "blocks"
        fields, parts = {part: "weight"}, {part: spec if codec == RAW else _block_bytes(spec, codec)}
        if parts[part].nbytes != layer.arrays["weight"].extent.nbytes:
            raise _malformed(f"{spec} as {codec} takes {parts[part].nbytes} bytes, not {layer.arrays['weight'].extent.nbytes}")
    return Entry(name, spec, codec, parts, {part: layer.arrays[field].extent for part, field in fields.items()})


def gguf_nbytes(code: int, shape: tuple[int, ...]) -> int:
    """The bytes of a weight of type 0; 0 where code and shape do not go together, which `entry_of` says."""
    if code in DENSE:
        return TensorSpec(shape, DENSE[code]).nbytes
    elements, nbytes = _BLOCK[BLOCKS[code]] if code in BLOCKS else (1, 0)
    return prod(shape) // elements * nbytes


def _block_bytes(spec: TensorSpec, codec: CodecSpec) -> TensorSpec:
    """The one part of a codec whose rows are runs of blocks; F8Q8 also fills a last one up, whatever the rows."""
    elements, nbytes = _BLOCK[codec.name]
    if spec.shape and spec.columns % elements == 0:
        return TensorSpec((*spec.shape[:-1], spec.columns // elements * nbytes), DType.U8)
    if type_of(codec) == GGUF:
        raise _malformed(f"{spec} does not have rows of whole blocks of {elements}, which {codec} needs")
    return TensorSpec((-(-spec.size // elements) * nbytes,), DType.U8)


def _one_of(layer: Layer, field: str, allowed: tuple[int, ...]) -> int:
    value = layer.numbers[field]
    if value not in allowed:
        raise _malformed(f"{field} is {value}, not one of {', '.join(map(str, allowed))}")
    return value


def _read_gguf(layer: Layer) -> tuple[TensorSpec, CodecSpec]:
    code = layer.numbers["dtype"]
    if code in DENSE:
        return TensorSpec(layer.shape, DENSE[code]), RAW
    if code not in BLOCKS:
        raise UnsupportedError(f"no type of ggml with the number {code} is known in UQFF", code="E_GGML_TYPE")
    return TensorSpec(layer.shape, DType.F32), CodecSpec(BLOCKS[code])


def _read_unquantized(layer: Layer) -> tuple[TensorSpec, CodecSpec]:
    return layer.arrays["weight"].spec, RAW


def _read_hqq(layer: Layer) -> tuple[TensorSpec, CodecSpec]:
    scale = layer.arrays["scales"].spec.dtype
    if scale not in SCALES or layer.arrays["zeros"].spec != layer.arrays["scales"].spec:
        raise _malformed("scales and zeros must be two equal tensors of f32, f16 or bf16")
    bits, axis, group = _one_of(layer, "bits", HQQ_BITS), _one_of(layer, "axis", (0, 1)), layer.numbers["group_size"]
    params: dict[str, Param] = {"bits": bits, "group": group, "scale": scale.label, "axis": axis}
    return TensorSpec(layer.shape, DType.F32), CodecSpec("hqq", params)


def _read_fp8(layer: Layer) -> tuple[TensorSpec, CodecSpec]:
    weight = layer.arrays["weight"].spec
    if _one_of(layer, "dtype", (FP8_CODE,)) and weight.dtype is not DType.F8_E4M3:
        raise _malformed(f"an FP8 weight must be f8_e4m3, not {weight}")
    return TensorSpec(weight.shape, DType.F32), CodecSpec("fp8_scalar")


def _read_afq(layer: Layer) -> tuple[TensorSpec, CodecSpec]:
    scale, bits, group = (
        layer.arrays["scales"].spec, _one_of(layer, "bits", AFQ_BITS), _one_of(layer, "group_size", AFQ_GROUPS)
    )  # fmt: skip
    if scale.dtype not in SCALES or not scale.shape:
        raise _malformed(f"scales must be a tensor of f32, f16 or bf16, not {scale}")
    shape = check_shape((*scale.shape[:-1], scale.columns * group))
    return TensorSpec(shape, DType.F32), afq(bits, group, scale.dtype)


def _read_f8q8(layer: Layer) -> tuple[TensorSpec, CodecSpec]:
    needed = -(-prod(layer.shape) // F8Q8_BLOCK)
    if layer.numbers["num_blocks"] != needed:
        raise _malformed(f"a tensor of {prod(layer.shape)} weights has {needed} blocks, not {layer.numbers['num_blocks']}")
    return TensorSpec(layer.shape, DType.F32), CodecSpec("f8q8")


def _read_mxfp4(layer: Layer) -> tuple[TensorSpec, CodecSpec]:
    weight = layer.arrays["weight"].spec
    if not weight.shape:
        raise _malformed("an MXFP4 weight must not be a scalar")
    return TensorSpec(check_shape((*weight.shape[:-1], 2 * weight.columns)), DType.F32), CodecSpec("mxfp4_split")


_READERS = (_read_gguf, _read_unquantized, _read_hqq, _read_fp8, _read_afq, _read_f8q8, _read_mxfp4)


def afq(bits: int, group: int = 64, scale: DType = DType.F32) -> CodecSpec:
    return CodecSpec("affine", _AFFINE | {"bits": bits, "group": group, "scale": scale.label})


# Writing ------------------------------------------------------------------------------------------


def type_of(codec: CodecSpec) -> int | None:
    """The type of layer that stores a codec, some of its parameters at least; None if none does."""
    return _TYPES.get(codec.name)


CARRIED = (
    *(Carried(name) for name in BLOCKS.values()),
    Carried("hqq", {"bits": HQQ_BITS}),
    Carried(
        "affine",
        {
            **{key: (value,) for key, value in _AFFINE.items()},
            "bits": AFQ_BITS, "group": AFQ_GROUPS, "scale": tuple(scale.label for scale in SCALES),
        },
    ),
    Carried("fp8_scalar"),
    Carried("f8q8"),
    Carried("mxfp4_split"),
)  # fmt: skip
"""The codecs of quantized layers."""


def adapted(codec: CodecSpec) -> CodecSpec:
    """A codec as layers have it: AFQ is one way to store an affine grid."""
    return CodecSpec(codec.name, {"scale": "f32", **codec.params, **_AFFINE}) if type_of(codec) == AFQ else codec


def form_of(entry: Entry) -> LayerForm:
    """How a tensor that `holds` is stored."""
    kind = type_of(entry.codec)
    assert kind is not None, "the container carries it"
    if kind in (GGUF, F8Q8):
        (part,) = entry.parts.values()
        numbers = {"dtype": GGML_TYPES[entry.codec.name].id} if kind == GGUF else {"num_blocks": part.nbytes // F8Q8_NBYTES}
        return LayerForm(kind, {"weight": ("blocks", TensorSpec((part.nbytes,), DType.U8))}, numbers, entry.spec.shape)
    fields = _PARTS.get(kind, {"data": "weight"})
    arrays = {field: (part, entry.parts[part]) for part, field in fields.items()}
    if kind == FP8:
        return LayerForm(kind, arrays, {"dtype": FP8_CODE})
    if kind in (UNQUANTIZED, MXFP4):
        return LayerForm(kind, arrays, {})
    numbers = {"bits": entry.codec.integer("bits"), "group_size": entry.codec.integer("group")}
    if kind == AFQ:
        return LayerForm(kind, arrays, numbers)
    return LayerForm(kind, arrays, {**numbers, "axis": entry.codec.integer("axis", 0), **HQQ_SETTINGS}, entry.spec.shape)


def holds(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Whether a tensor in a codec can be a layer, or a plain tensor beside them."""
    kind = type_of(codec)
    if kind == UNQUANTIZED:
        return spec.dtype in STANDARD_TYPES
    if len(spec.shape) < 2 or spec.dtype is not DType.F32 or not any(carried.matches(codec) for carried in CARRIED):
        return False
    stacked = len(spec.shape) > 2  # experts, of which mistral.rs takes the other types alone
    if kind in (HQQ, AFQ):
        group = codec.integer("group", 0)
        return group > 0 and (spec.columns if kind == AFQ else spec.size) % group == 0 and not (kind == HQQ and stacked)
    if kind in (FP8, F8Q8):
        return not stacked
    elements = MXFP4_BLOCK if kind == MXFP4 else _BLOCK[codec.name][0]
    return spec.columns % elements == 0
