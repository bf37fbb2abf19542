"""Core ML models of every form that coremltools can write, made by coremltools itself.

A model is small and has many weights, each in another form and named after it. Weights of `FORMS` are constexpr operators
with given arrays, so that every element type, block and axis occurs. `coremltools_packages` has whole models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

logging.disable(logging.CRITICAL)  # coremltools reports the parts of it that only a Mac has, and draws bars of progress
import coremltools as ct  # noqa: E402
from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import types  # noqa: E402

logging.disable(logging.NOTSET)

Array = np.ndarray[Any, Any]
Form = Callable[[np.random.Generator], Any]
"""Makes the variable of a weight inside a program that is being built."""


def numpy_type(name: str) -> Any:
    """A type of MIL as coremltools marks it in NumPy: `int4` is int8 with a note."""
    return types.type_mapping.string_to_nptype(name)


def codes(rng: np.random.Generator, name: str, *shape: int) -> Array:
    """Integers over the whole range of a type, its least and greatest among them."""
    bits = int(name.lstrip("uint"))
    least, most = (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    drawn = rng.integers(least, most + 1, shape)
    if drawn.size:
        drawn.flat[0], drawn.flat[-1] = least, most
    return drawn.astype(numpy_type(name))


def floats(rng: np.random.Generator, name: str, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(numpy_type(name))


def scales(rng: np.random.Generator, name: str, *shape: int) -> Array:
    return (rng.random(shape) / 64 + 1 / 128).astype(numpy_type(name))


def mask(rng: np.random.Generator, share: float, *shape: int) -> Array:
    return (rng.random(shape) < share).astype(numpy_type("uint1"))


# iOS 16 -------------------------------------------------------------------------------------------


def affine(data: str, zero: str, scale: str, shape: tuple[int, ...], vectors: str = "both", axis: int = 0) -> Form:
    """`vectors` says whether scale and zero point are vectors along `axis` or scalars: both, scale, neither."""

    def make(rng: np.random.Generator) -> Any:
        length = shape[axis]
        zeros = floats(rng, zero, length) if zero == "fp32" else codes(rng, zero, length)
        factors = scales(rng, scale, length)
        return mb.constexpr_affine_dequantize(
            quantized_data=codes(rng, data, *shape),
            zero_point=zeros if vectors == "both" else zeros[0],
            scale=factors[0] if vectors == "neither" else factors,
            axis=np.int32(axis),
        )

    return make


def packed_lut(bits: int, table: str, *shape: int) -> Form:
    def make(rng: np.random.Generator) -> Any:
        indices = rng.integers(0, 2**bits, int(np.prod(shape)), dtype=np.uint8)
        stream = np.packbits(np.unpackbits(indices[:, None], axis=1, bitorder="little")[:, :bits], bitorder="little")
        values = floats(rng, table, 2**bits) if table.startswith("fp") else codes(rng, table, 2**bits)
        return mb.constexpr_lut_to_dense(indices=stream, lut=values, shape=np.array(shape, np.uint32))

    return make


def packed_sparse(share: float, values: str, *shape: int) -> Form:
    def make(rng: np.random.Generator) -> Any:
        kept = mask(rng, share, *shape)
        stored = floats(rng, values, np.count_nonzero(kept))
        return mb.constexpr_sparse_to_dense(
            nonzero_data=stored, mask=np.packbits(kept.reshape(-1), bitorder="little"), shape=np.array(shape, np.uint32)
        )

    return make


# iOS 18 -------------------------------------------------------------------------------------------


def blockwise(data: str, scale: str, shape: tuple[int, ...], blocks: tuple[int, ...], offset: str = "") -> Form:
    """`blocks`: how many along each axis, the shape of the scales."""

    def make(rng: np.random.Generator) -> Any:
        values = floats(rng, data, *shape) if data.startswith("fp") else codes(rng, data, *shape)
        return mb.constexpr_blockwise_shift_scale(
            data=values, scale=scales(rng, scale, *blocks), offset=offsets(rng, offset, blocks)
        )

    return make


def offsets(rng: np.random.Generator, name: str, blocks: tuple[int, ...]) -> Array | None:
    if not name:
        return None
    return floats(rng, name, *blocks) if name.startswith("fp") else codes(rng, name, *blocks)


def tables(rng: np.random.Generator, name: str, bits: int, blocks: tuple[int, ...], vector: int) -> Array:
    shape = (*blocks, 2**bits, vector)
    return floats(rng, name, *shape) if name.startswith("fp") else codes(rng, name, *shape)


def lut(
    bits: int, table: str, shape: tuple[int, ...], blocks: tuple[int, ...], vector: int = 1, axis: int | None = None
) -> Form:
    """`shape` is that of the indices; the weight has `vector` times as many along `axis`."""

    def make(rng: np.random.Generator) -> Any:
        return mb.constexpr_lut_to_dense(
            indices=codes(rng, f"uint{bits}", *shape),
            lut=tables(rng, table, bits, blocks, vector),
            vector_axis=None if axis is None else np.int32(axis),
        )

    return make


def sparse(share: float, values: str, *shape: int) -> Form:
    def make(rng: np.random.Generator) -> Any:
        kept = mask(rng, share, *shape)
        return mb.constexpr_sparse_to_dense(nonzero_data=floats(rng, values, np.count_nonzero(kept)), mask=kept)

    return make


def sparse_lut(
    bits: int, table: str, shape: tuple[int, ...], blocks: tuple[int, ...], vector: int = 1, axis: int | None = None
) -> Form:
    def make(rng: np.random.Generator) -> Any:
        kept = mask(rng, 0.4, *shape)
        where, values = mb.constexpr_lut_to_sparse(
            indices_mask=kept,
            indices_nonzero_data=codes(rng, f"uint{bits}", np.count_nonzero(kept)),
            lut=tables(rng, table, bits, blocks, vector),
            vector_axis=None if axis is None else np.int32(axis),
        )
        return mb.constexpr_sparse_to_dense(nonzero_data=values, mask=where)

    return make


def sparse_blockwise(data: str, scale: str, shape: tuple[int, ...], blocks: tuple[int, ...], offset: str = "") -> Form:
    def make(rng: np.random.Generator) -> Any:
        kept = mb.const(val=mask(rng, 0.4, *shape))
        where, values = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=kept,
            nonzero_data=codes(rng, data, np.count_nonzero(kept.val)),
            scale=scales(rng, scale, *blocks),
            offset=offsets(rng, offset, blocks),
        )
        return mb.constexpr_sparse_to_dense(nonzero_data=values, mask=where if offset else kept)

    return make


def scaled_table(
    bits: int, table: str, shape: tuple[int, ...], blocks: tuple[int, ...], scaled: tuple[int, ...], offset: str = ""
) -> Form:
    """The table is scaled, then looked up in: what coremltools writes for iOS 18."""

    def make(rng: np.random.Generator) -> Any:
        values = mb.constexpr_blockwise_shift_scale(
            data=tables(rng, table, bits, blocks, 1),
            scale=scales(rng, "fp16", *scaled, 1, 1),
            offset=offsets(rng, offset, (*scaled, 1, 1)),
        )
        return mb.constexpr_lut_to_dense(indices=codes(rng, f"uint{bits}", *shape), lut=values)

    return make


def scaled(inner: Form, blocks: tuple[int, ...], offset: str = "", scale: str = "fp16") -> Form:
    """Another form, then a scale: what coremltools writes for iOS 26."""

    def make(rng: np.random.Generator) -> Any:
        return mb.constexpr_blockwise_shift_scale(
            data=inner(rng), scale=scales(rng, scale, *blocks), offset=offsets(rng, offset, blocks)
        )

    return make


def cast(*shape: int) -> Form:
    return lambda rng: mb.constexpr_cast(source_val=floats(rng, "fp16", *shape), output_dtype="fp32")


FORMS: dict[str, tuple[Any, dict[str, Form]]] = {
    "affine": (
        ct.target.iOS16,
        {
            "i8_channel": affine("int8", "int8", "fp16", (12, 10)),
            "u8_channel": affine("uint8", "uint8", "fp16", (12, 10)),
            "i8_channel_f32": affine("int8", "int8", "fp32", (12, 10)),
            "i8_tensor": affine("int8", "int8", "fp16", (12, 10), "neither"),
            "u8_tensor_f32": affine("uint8", "uint8", "fp32", (7, 9), "neither"),
            "u8_scalar_zero": affine("uint8", "uint8", "fp16", (12, 10), "scale", 1),
            "i8_last_axis": affine("int8", "int8", "fp16", (3, 5, 11), "both", -1),
            "u8_float_zero": affine("uint8", "fp32", "fp16", (12, 10)),
            "u8_float_zero_f32": affine("uint8", "fp32", "fp32", (12, 10)),
            "i8_conv": affine("int8", "int8", "fp16", (6, 4, 3, 3)),
            "i8_conv_transpose": affine("int8", "int8", "fp16", (4, 6, 2, 2), "both", 1),
            "i8_few": affine("int8", "int8", "fp16", (3, 3)),
        },
    ),
    "packed_lut": (
        ct.target.iOS16,
        {
            **{f"bits{bits}_f16": packed_lut(bits, "fp16", 7, 9) for bits in (1, 2, 4, 6, 8)},
            "bits4_f32": packed_lut(4, "fp32", 12, 10),
            "bits6_conv": packed_lut(6, "fp16", 5, 3, 3, 3),
            "bits2_vector": packed_lut(2, "fp16", 13),
        },
    ),
    "packed_sparse": (
        ct.target.iOS16,
        {
            "half_f16": packed_sparse(0.5, "fp16", 12, 10),
            "half_f32": packed_sparse(0.5, "fp32", 7, 9),
            "few_conv": packed_sparse(0.1, "fp16", 5, 3, 3, 3),
            "none": packed_sparse(0, "fp16", 6, 4),
            "all": packed_sparse(1, "fp16", 6, 4),
        },
    ),
    "blockwise": (
        ct.target.iOS18,
        {
            **{f"{data}_tensor": blockwise(data, "fp16", (7, 9), (1, 1)) for data in ("int4", "uint4", "int8", "uint8")},
            **{f"{data}_offset": blockwise(data, "fp16", (6, 10), (6, 1), data) for data in ("int4", "uint4", "int8", "uint8")},
            "int4_block": blockwise("int4", "fp16", (6, 12), (6, 3)),
            "uint4_block_offset": blockwise("uint4", "fp16", (6, 12), (6, 3), "uint4"),
            "int8_square": blockwise("int8", "fp16", (6, 12), (3, 4), "int8"),
            "int8_columns": blockwise("int8", "fp16", (6, 12), (1, 12)),
            "int8_f32": blockwise("int8", "fp32", (6, 12), (6, 1)),
            "uint4_f32_offset": blockwise("uint4", "fp32", (5, 7), (5, 1), "uint4"),
            "int8_each": blockwise("int8", "fp16", (3, 4), (3, 4)),
            "int4_conv": blockwise("int4", "fp16", (6, 4, 3, 3), (6, 2, 1, 1)),
            "int8_conv_offset": blockwise("int8", "fp16", (6, 4, 3, 3), (6, 1, 1, 1), "int8"),
            "int8_conv3": blockwise("int8", "fp16", (4, 3, 1, 3, 3), (4, 1, 1, 1, 1)),
            "int8_vector": blockwise("int8", "fp16", (12,), (3,)),
            "half_as_single": cast(4, 5),
            "int8_few": blockwise("int8", "fp16", (3, 3), (3, 1)),
            "int4_few_offset": blockwise("int4", "fp16", (3, 3), (3, 1), "int4"),
            "fp16_scaled": blockwise("fp16", "fp16", (6, 12), (6, 1)),
            "fp32_scaled": blockwise("fp32", "fp32", (6, 12), (6, 1)),
            "int8_float_offset_f32": blockwise("int8", "fp32", (6, 12), (6, 1), "fp32"),
            "int8_float_offset": blockwise("int8", "fp16", (6, 12), (6, 1), "fp16"),
        },
    ),
    "lut": (
        ct.target.iOS18,
        {
            **{f"bits{bits}": lut(bits, "fp16", (7, 9), (1, 1)) for bits in (1, 2, 3, 4, 6)},
            "bits8": lut(8, "fp16", (20, 15), (1, 1)),
            "bits3_few": lut(3, "fp16", (3, 3), (1, 1)),
            "bits4_f32": lut(4, "fp32", (7, 9), (1, 1)),
            "bits4_rows": lut(4, "fp16", (8, 6), (4, 1)),
            "bits2_columns": lut(2, "fp16", (6, 12), (1, 3)),
            "bits2_conv_rows": lut(2, "fp16", (6, 4, 3, 3), (3, 1, 1, 1)),
            "bits4_vector2_rows": lut(4, "fp16", (4, 10), (1, 1), 2, 0),
            "bits4_vector4_rows": lut(4, "fp16", (3, 10), (1, 1), 4, 0),
            "bits2_vector2_columns": lut(2, "fp16", (5, 6), (1, 1), 2, 1),
            "bits2_vector3_last": lut(2, "fp16", (5, 6), (1, 1), 3, -1),
            "bits3_vector2_groups": lut(3, "fp16", (4, 9), (2, 1), 2, 0),
            "bits3_vector2_crossed": lut(3, "fp16", (8, 5), (4, 1), 2, 1),
            "bits2_vector2_conv": lut(2, "fp16", (3, 4, 3, 3), (1, 1, 1, 1), 2, 0),
        },
    ),
    "sparse": (
        ct.target.iOS18,
        {
            "half_f16": sparse(0.5, "fp16", 12, 10),
            "half_f32": sparse(0.5, "fp32", 7, 9),
            "few_conv": sparse(0.1, "fp16", 5, 3, 3, 3),
            "none": sparse(0, "fp16", 6, 4),
            "none_f32": sparse(0, "fp32", 6, 4),
            "all": sparse(1, "fp16", 6, 4),
        },
    ),
    "joint": (
        ct.target.iOS18,
        {
            "sparse_lut4": sparse_lut(4, "fp16", (7, 9), (1, 1)),
            "sparse_lut3_groups": sparse_lut(3, "fp16", (8, 6), (4, 1)),
            "sparse_lut2_vector": sparse_lut(2, "fp16", (4, 10), (1, 1), 2, 0),
            "sparse_lut4_f32": sparse_lut(4, "fp32", (7, 9), (1, 1)),
            "sparse_int8": sparse_blockwise("int8", "fp16", (7, 9), (7, 1)),
            "sparse_uint8_offset": sparse_blockwise("uint8", "fp16", (7, 9), (7, 1), "uint8"),
            "sparse_int4_block": sparse_blockwise("int4", "fp16", (6, 12), (6, 3)),
            "sparse_uint4_block_offset": sparse_blockwise("uint4", "fp16", (6, 12), (6, 3), "uint4"),
            "sparse_int4_f32_conv": sparse_blockwise("int4", "fp32", (6, 4, 3, 3), (6, 1, 1, 1)),
            "int8_table": scaled_table(4, "int8", (8, 6), (1, 1), (1, 1)),
            "int8_table_rows": scaled_table(2, "int8", (8, 6), (8, 1), (8, 1)),
            "uint8_table_offset": scaled_table(2, "uint8", (8, 6), (8, 1), (8, 1), "uint8"),
            "fp16_table_columns": scaled_table(2, "fp16", (8, 6), (1, 6), (1, 6)),
            "sparse_int8_few": sparse_blockwise("int8", "fp16", (3, 3), (3, 1)),
        },
    ),
    "scaled": (
        ct.target.iOS26,
        {
            "lut4_rows": scaled(lut(4, "fp16", (8, 6), (1, 1)), (8, 1)),
            "lut4_groups_rows": scaled(lut(4, "fp16", (8, 6), (4, 1)), (8, 1)),
            "lut2_blocks": scaled(lut(2, "fp16", (8, 6), (4, 1)), (2, 3)),
            "lut4_int8_rows": scaled(lut(4, "int8", (8, 6), (1, 1)), (8, 1)),
            "lut2_vector_int8": scaled(lut(2, "int8", (4, 6), (1, 1), 2, 0), (8, 1)),
            "lut4_f32": scaled(lut(4, "fp32", (8, 6), (1, 1)), (8, 1), scale="fp32"),
            "sparse_f16": scaled(sparse(0.5, "fp16", 8, 6), (8, 1)),
        },
    ),
    "unusual": (
        ct.target.iOS26,
        {
            "tables_along_two_axes": lut(1, "fp16", (6, 12), (2, 3)),
            "scale_for_several_tables": scaled_table(2, "int8", (8, 6), (4, 1), (2, 1)),
            "offset_of_a_table": scaled(lut(4, "uint8", (8, 6), (1, 1)), (8, 1), "uint8"),
        },
    ),
}
"""Programs by name: the system they are for, and their weights."""


def drawn_form(rng: np.random.Generator) -> Form:
    """A form of iOS 18 with a shape, types and blocks that were drawn."""

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    def divisor(length: int) -> int:
        return int(one_of(*(count for count in range(1, length + 1) if length % count == 0)))

    shape = tuple(int(length) for length in rng.integers(1, 13, one_of(1, 2, 2, 2, 3, 4)))
    blocks = tuple(divisor(length) for length in shape)
    axis = int(rng.integers(len(shape)))
    rows = tuple(divisor(length) if at == axis else 1 for at, length in enumerate(shape))
    float_type = one_of("fp16", "fp16", "fp32")
    data, bits = one_of("int4", "uint4", "int8", "uint8"), one_of(1, 2, 3, 4, 6, 8)
    vector = one_of(1, 1, 2, 3, 4)
    along = None if vector == 1 else int(rng.integers(-len(shape), len(shape)))
    palette = (bits, float_type, shape, rows, vector, along)
    linear = (data, float_type, shape, blocks, one_of("", data))
    return one_of(
        blockwise(*linear),
        lut(*palette),
        sparse(rng.random(), float_type, *shape),
        sparse_blockwise(*linear),
        sparse_lut(*palette),
        scaled(lut(bits, float_type, shape, rows), blocks, scale=float_type),
    )


def program(target: Any, forms: dict[str, Form], seed: int) -> Any:
    """Each weight times an input; the product is an output called after it."""

    @mb.program(input_specs=[mb.TensorSpec((1,), types.fp16), mb.TensorSpec((1,), types.fp32)], opset_version=target)
    def build(half: Any, single: Any) -> Any:
        outputs = []
        for place, (name, form) in enumerate(forms.items()):
            weight = form(np.random.default_rng((seed, place)))
            weight.name = name
            outputs.append(mb.mul(x=half if weight.dtype == types.fp16 else single, y=weight, name=f"{name}_out"))
        return tuple(outputs)

    return build


def converted(built: Any, target: Any) -> Any:
    """As it was built: no pass rewrites it, no type is changed."""
    return ct.convert(
        built,
        convert_to="mlprogram",
        minimum_deployment_target=target,
        compute_precision=ct.precision.FLOAT32,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )


def forms_model(name: str) -> Any:
    target, forms = FORMS[name]
    return converted(program(target, forms, sorted(FORMS).index(name)), target)
