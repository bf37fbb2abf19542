"""Weights as the operations that decode them: the inverse of `constexprs`.

Programs of iOS 16 and 17 (`CoreML6`, `CoreML7`) have int8 per tensor or channel, palettes of one table, and plain sparsity, as
attributes; those of iOS 18 and later everything, as inputs. Earlier ones have plain constants alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

from flyweight.containers.coreml.constexprs import CAST
from flyweight.containers.coreml.element_types import PLAIN, TYPES, ElementType
from flyweight.containers.coreml.program_writing import (
    WeightsOfProgram,
    constant,
    dims_value,
    integer_value,
    operation,
    tensor_type,
    text_value,
    zero_value,
)
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.protobuf import Pieces
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec

_OPSET = re.compile(r"CoreML(\d+)")
IOS16, IOS18 = 6, 8
"""Numbers of the opsets that have the operations of iOS 16 and of iOS 18."""


def generation(opset: str) -> int:
    """The number of an opset; operations of later ones are taken to be those of iOS 18."""
    found = _OPSET.fullmatch(opset)
    if found is None:
        raise UnsupportedError(f"an opset called '{opset[:40]}'", code="E_OPSET", hint="known are CoreML5 to CoreML9")
    return int(found[1])


def value_type(entry: Entry) -> ElementType:
    """The element type that a weight has in the program."""
    codec = entry.codec
    if codec == RAW:
        return PLAIN[entry.spec.dtype]
    if codec.params.get("inner") == RAW:  # behind a scale it is the part that says, not the tensor
        return PLAIN[entry.parts["inner.data"].dtype]
    if isinstance(inner := codec.params.get("inner"), CodecSpec) and "scale" not in codec.params:
        codec = inner
    return TYPES[str(codec.params.get("scale") or codec.params["table"])]


class Weight(NamedTuple):
    """One tensor to write, under the name that the program has for it."""

    entry: Entry
    output: str
    generation: int
    weights: WeightsOfProgram

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.spec.shape

    @property
    def kind(self) -> ElementType:
        return value_type(self.entry)

    def array(self, kind: ElementType, shape: tuple[int, ...], part: str) -> Pieces:
        return self.weights.value(kind, shape, (self.entry.name, part))

    def unused(self, what: str) -> str:
        """A name for something that this weight is made of."""
        return self.weights.unused(f"{self.output}_{what}")

    def unsupported(self, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.entry.codec} {why}", code="E_OPSET", tensor=self.entry.name,
            hint="programs of iOS 16 and 17 hold int8 per tensor or channel, palettes of one table and plain sparsity; for the "
            "rest convert the model again with coremltools and minimum_deployment_target=iOS18",
        )  # fmt: skip

    def operation(self, kind: str, arguments: Mapping[str, str | Pieces]) -> Pieces:
        return operation(kind, {self.output: tensor_type(self.kind, self.shape)}, inputs=arguments)

    def of_ios16(self, kind: str, arguments: Mapping[str, Pieces]) -> Pieces:
        return operation(kind, {self.output: tensor_type(self.kind, self.shape)}, attributes=arguments)


def write(weight: Weight) -> list[Pieces]:
    """The operations that make a weight, the last of them under its name."""
    codec = weight.entry.codec
    if codec == RAW:
        # In the weight file, however small: what lies in the program is no weight to who reads it.
        value = weight.weights.blob(weight.kind, weight.shape, (weight.entry.name, "data"))
        return [constant(weight.output, weight.kind, weight.shape, value)]
    if weight.generation < IOS16:
        raise weight.unsupported("needs a program of iOS 16 or later")
    writers = _IOS16 if weight.generation < IOS18 else _IOS18
    write_form = writers.get(codec.name)
    if write_form is None:
        raise weight.unsupported("needs a program of iOS 18 or later")
    return write_form(weight)


def write_cast(weight: Weight) -> list[Pieces]:
    """f16 for a program that computes in f32."""
    if weight.generation < IOS16:
        raise weight.unsupported("needs a program of iOS 16 or later")
    arguments = {
        "source_val": weight.weights.blob(weight.kind, weight.shape, (weight.entry.name, "data")),
        "output_dtype": text_value("fp32"),
    }
    made = {weight.output: tensor_type(TYPES["f32"], weight.shape)}
    if weight.generation < IOS18:
        return [operation(CAST, made, attributes=arguments)]
    return [operation(CAST, made, inputs=arguments)]


# iOS 16 -------------------------------------------------------------------------------------------


def _affine_dequantize(weight: Weight) -> list[Pieces]:
    codec, shape = weight.entry.codec, weight.shape
    data, scale = TYPES[str(codec.params["data"])], TYPES[str(codec.params["scale"])]
    blocks = weight.entry.parts["scale"].shape
    cut = [axis for axis, count in enumerate(blocks) if count > 1]
    if data.label not in ("i8", "u8") or len(cut) > 1 or any(blocks[axis] != shape[axis] for axis in cut):
        raise weight.unsupported("needs a program of iOS 18 or later")
    axis = cut[0] if cut else 0
    dims = (shape[axis],) if cut else ()
    offset = codec.params.get("offset")
    if offset not in ("", "data", "f32"):
        raise weight.unsupported("needs a program of iOS 18 or later")
    zero = data if offset == "data" else TYPES["f32"]
    arguments = {
        "quantized_data": weight.array(data, shape, "codes"),
        "zero_point": weight.array(zero, dims, "offset") if offset else zero_value(data),
        "scale": weight.array(scale, dims, "scale"),
        "axis": integer_value(axis),
    }
    return [weight.of_ios16("constexpr_affine_dequantize", arguments)]


def _flat_palette(weight: Weight) -> list[Pieces]:
    codec = weight.entry.codec
    bits, table = codec.integer("bits"), weight.entry.parts["tables"]
    if prod(table.shape) != 1 << bits or codec.params.get("scale") or bits == 3:
        raise weight.unsupported("needs a program of iOS 18 or later")
    arguments = {
        "indices": weight.array(TYPES["u8"], weight.entry.parts["indices"].shape, "indices"),
        "lut": weight.array(TYPES[table.dtype.label], (1 << bits,), "tables"),
        "shape": dims_value(weight.shape),
    }
    return [weight.of_ios16("constexpr_lut_to_dense", arguments)]


def _flat_sparse(weight: Weight) -> list[Pieces]:
    stored = weight.entry.codec.integer("stored")
    arguments = {
        "nonzero_data": weight.array(weight.kind, (stored,), "inner.data"),
        "mask": weight.array(TYPES["u8"], ((prod(weight.shape) + 7) // 8,), "mask"),
        "shape": dims_value(weight.shape),
    }
    return [weight.of_ios16("constexpr_sparse_to_dense", arguments)]


# iOS 18 -------------------------------------------------------------------------------------------


def _blockwise_arguments(weight: Weight, codec: CodecSpec, prefix: str = "") -> dict[str, Pieces]:
    """Scale and offset."""
    data, blocks = TYPES[str(codec.params["data"])], weight.entry.parts[prefix + "scale"].shape
    arguments = {"scale": weight.array(TYPES[str(codec.params["scale"])], blocks, prefix + "scale")}
    if offset := codec.params.get("offset"):
        arguments["offset"] = weight.array(data if offset == "data" else TYPES[str(offset)], blocks, prefix + "offset")
    return arguments


def _blockwise(weight: Weight) -> list[Pieces]:
    codec = weight.entry.codec
    data = weight.array(TYPES[str(codec.params["data"])], weight.shape, "codes")
    return [weight.operation("constexpr_blockwise_shift_scale", {"data": data, **_blockwise_arguments(weight, codec)})]


def _table(weight: Weight, codec: CodecSpec, prefix: str) -> tuple[list[Pieces], dict[str, str | Pieces]]:
    """The operation that makes a table, where it has a scale, and the arguments `lut` and `vector_axis`."""
    table = weight.entry.parts[prefix + "tables"]
    stored = weight.array(TYPES[table.dtype.label], table.shape, prefix + "tables")
    arguments: dict[str, str | Pieces] = {"lut": stored}
    before = []
    if codec.params.get("scale"):
        name, kind = weight.unused("lut"), TYPES[str(codec.params["scale"])]
        scales = weight.entry.parts[prefix + "scale"].shape
        shift: dict[str, str | Pieces] = {"data": stored, "scale": weight.array(kind, scales, prefix + "scale")}
        if codec.params.get("offset"):
            shift["offset"] = weight.array(TYPES[table.dtype.label], scales, prefix + "offset")
        before = [operation("constexpr_blockwise_shift_scale", {name: tensor_type(kind, table.shape)}, inputs=shift)]
        arguments["lut"] = name
    if table.shape[-1] > 1:
        axis = codec.integer("vector_axis")
        arguments["vector_axis"] = integer_value(axis % len(weight.shape))
    return before, arguments


def _places(weight: Weight, codec: CodecSpec) -> tuple[int, ...]:
    """The shape of the indices."""
    vector, axis = codec.integer("vector", 1), codec.integer("vector_axis", -1) % max(len(weight.shape), 1)
    if weight.shape[axis] % vector:
        raise weight.unsupported(f"needs vectors that divide {weight.shape[axis]}")
    return tuple(length // vector if at == axis else length for at, length in enumerate(weight.shape))


def _palette(weight: Weight) -> list[Pieces]:
    codec = weight.entry.codec
    before, arguments = _table(weight, codec, "")
    indices = weight.array(TYPES[f"u{codec.integer('bits')}"], _places(weight, codec), "indices")
    return [*before, weight.operation("constexpr_lut_to_dense", {"indices": indices, **arguments})]


def _scaled(weight: Weight) -> list[Pieces]:
    codec, entry = weight.entry.codec, weight.entry
    inner = codec.params["inner"]
    assert isinstance(inner, CodecSpec)
    prefix, name, kind = "inner.", weight.unused("unscaled"), TYPES[str(codec.params["scale"])]
    assert kind.dtype is not None
    spec = TensorSpec(entry.spec.shape, kind.dtype)  # values and scale are of one type
    within = {key.removeprefix(prefix): part for key, part in entry.parts.items() if key.startswith(prefix)}
    operations = write(
        weight._replace(entry=Entry(entry.name, spec, inner, within), output=name, weights=_Prefixed(weight.weights, prefix))
    )
    scale = weight.array(kind, entry.parts["scale"].shape, "scale")
    return [*operations, weight.operation("constexpr_blockwise_shift_scale", {"data": name, "scale": scale})]


class _Prefixed(WeightsOfProgram):
    """The same weights, where parts are named as by a codec inside another."""

    def __init__(self, weights: WeightsOfProgram, prefix: str) -> None:
        self.weights, self.prefix = weights, prefix

    def unused(self, name: str) -> str:
        return self.weights.unused(name)

    def value(self, kind: ElementType, shape: tuple[int, ...], key: tuple[str, str]) -> Pieces:
        return self.weights.value(kind, shape, (key[0], self.prefix + key[1]))

    def blob(self, kind: ElementType, shape: tuple[int, ...], key: tuple[str, str]) -> Pieces:
        return self.weights.blob(kind, shape, (key[0], self.prefix + key[1]))


def _sparse(weight: Weight) -> list[Pieces]:
    stored = weight.entry.codec.integer("stored")
    kept = weight.array(weight.kind, (stored,), "inner.data")
    mask = weight.array(TYPES["u1"], weight.shape, "mask")
    return [weight.operation("constexpr_sparse_to_dense", {"nonzero_data": kept, "mask": mask})]


def _sparse_codes(weight: Weight) -> list[Pieces]:
    codec, stored = weight.entry.codec.params["inner"], weight.entry.codec.integer("stored")
    assert isinstance(codec, CodecSpec)
    prefix, before, places = "inner.", list[Pieces](), weight.shape
    names = weight.unused("mask"), weight.unused("nonzero_data")
    if "bits" in codec.params:  # a palette
        places, kind, given = _places(weight, codec), "constexpr_lut_to_sparse", ("indices_mask", "indices_nonzero_data")
        before, arguments = _table(weight, codec, prefix)
        data, part = TYPES[f"u{codec.integer('bits')}"], "indices"
    else:
        kind, given = "constexpr_sparse_blockwise_shift_scale", ("data_mask", "nonzero_data")
        arguments = {**_blockwise_arguments(weight, codec, prefix)}
        data, part = TYPES[str(codec.params["data"])], "codes"
    kept = stored * codec.integer("vector", 1)
    outputs = {names[0]: tensor_type(TYPES["u1"], weight.shape), names[1]: tensor_type(weight.kind, (kept,))}
    bound: dict[str, str | Pieces] = {
        given[0]: weight.array(TYPES["u1"], places, "mask"),
        given[1]: weight.array(data, (stored,), prefix + part),
    }
    sparse = operation(kind, outputs, inputs={**bound, **arguments}, name=names[1])
    return [*before, sparse, weight.operation("constexpr_sparse_to_dense", {"mask": names[0], "nonzero_data": names[1]})]


_IOS16: dict[str, Callable[[Weight], list[Pieces]]] = {
    "blockwise": _affine_dequantize,
    "palette": _flat_palette,
    "sparse": _flat_sparse,
}
_IOS18: dict[str, Callable[[Weight], list[Pieces]]] = {
    "blockwise": _blockwise,
    "scaled": _scaled,
    "palette": _palette,
    "sparse": _sparse,
    "sparse_codes": _sparse_codes,
}
