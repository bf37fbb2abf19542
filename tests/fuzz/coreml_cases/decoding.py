"""Operations that decode weights, with arrays that disagree: shapes, types, axes, tables, masks."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.coreml_cases.programs import of
from support.coreml_files import (
    F16,
    F32,
    I4,
    I8,
    KEPT,
    SHAPE,
    U1,
    U2,
    U3,
    U4,
    U8,
    U32,
    Forms,
    bytes_value,
    dims_value,
    floats_value,
    integer_value,
    operation,
    output,
    text_value,
    typed,
    used,
)
from support.fuzz_cases import Case


def case(make: Callable[[Forms], list[bytes]], code: str, exit_code: int = 3) -> Case:
    forms = Forms()
    return of(make(forms), code, exit_code, forms=forms)


def without(kind: str, *given: str) -> Case:
    """An operation that lacks an array."""
    forms = Forms()
    arrays = {"data": (I8, SHAPE), "scale": (F16, (4, 1)), "indices": (U4, SHAPE), "lut": (F16, (1, 1, 16, 1)),
              "nonzero_data": (F16, (KEPT,)), "mask": (U1, SHAPE), "indices_mask": (U1, SHAPE),
              "indices_nonzero_data": (U4, (KEPT,)), "data_mask": (U1, SHAPE), "quantized_data": (I8, SHAPE)}  # fmt: skip
    arguments = {key: forms.blob(*arrays[key]) for key in given}
    return of([operation(f"constexpr_{kind}", output("w"), arguments)], forms=forms)


def affine(code: str, exit_code: int = 3, **changed: bytes) -> Case:
    return case(lambda forms: forms.affine(**changed), code, exit_code)


def one(kind: int, *shape: int) -> bytes:
    """A value in the program: zeros."""
    bits = {F16: 16, F32: 32, I8: 8, U8: 8, U1: 1, U2: 2, U3: 3, U4: 4, I4: 4, U32: 32}[kind]
    count = 1
    for length in shape:
        count *= length
    return bytes_value(kind, shape, bytes((count * bits + 7) // 8))


_AFFINE: dict[str, Case] = {
    "affine without data": without("affine_dequantize", "scale"),
    "affine without a scale": without("affine_dequantize", "quantized_data"),
    "affine without a zero point": without("affine_dequantize", "quantized_data", "scale"),
    "affine along axis 2 of 2": affine("E_PROGRAM", axis=integer_value(2)),
    "affine along axis -3 of 2": affine("E_PROGRAM", axis=integer_value(-3)),
    "affine along axis 2^31": affine("E_PROGRAM", axis=integer_value(2**31)),
    "affine along two axes": affine("E_PROGRAM", axis=integer_value(0, 1, shape=(2,))),
    "affine along no axis": affine("E_PROGRAM", axis=integer_value(shape=(0,))),
    "affine along an axis that is a text": affine("E_CONSTEXPR", 4, axis=text_value("0")),
    "affine along an axis of a megabyte": affine("E_CONSTEXPR", 4, axis=integer_value(*[1] * 2**20)),
    "affine of a scalar": affine("E_PROGRAM", quantized_data=one(I8)),
    "affine of too many scales": affine("E_SHAPE", scale=one(F16, 5)),
    "affine of scales of rank 2": affine("E_SHAPE", scale=one(F16, 4, 1)),
    "affine of scales of i8": affine("E_CONSTEXPR", 4, scale=one(I8, 4)),
    "affine of too many zero points": affine("E_PROGRAM", zero_point=one(I8, 5)),
    "affine of zero points of another type": affine("E_CONSTEXPR", 4, zero_point=one(U8, 4)),
    "affine of data of f16": affine("E_SHAPE", quantized_data=one(F16, 2, 2)),
    "affine of one byte too few": affine("E_SIZE", scale=bytes_value(F16, (4,), bytes(7))),
    "affine of nine bytes too many": affine("E_SIZE", scale=bytes_value(F16, (4,), bytes(17))),
    "affine of data that is integers": affine("E_CONSTEXPR", 4, quantized_data=integer_value(*[1] * 64, shape=SHAPE)),
}


def blockwise(code: str, exit_code: int = 3, **changed: bytes) -> Case:
    return case(lambda forms: forms.blockwise(**changed), code, exit_code)


ARRAYS = {"data": one(I8, *SHAPE), "scale": one(F16, 4, 1)}

_BLOCKWISE: dict[str, Case] = {
    "blockwise without data": without("blockwise_shift_scale", "scale"),
    "blockwise without a scale": without("blockwise_shift_scale", "data"),
    "blockwise of blocks that do not divide": blockwise("E_SHAPE", scale=one(F16, 3, 1)),
    "blockwise of more scales than values": blockwise("E_SHAPE", scale=one(F16, 8, 1)),
    "blockwise of no scales": blockwise("E_SHAPE", scale=one(F16, 0, 1)),
    "blockwise of scales of rank 1": blockwise("E_SHAPE", scale=one(F16, 4)),
    "blockwise of scales of rank 3": blockwise("E_SHAPE", scale=one(F16, 4, 1, 1)),
    "blockwise of scales of i8": blockwise("E_CONSTEXPR", 4, scale=one(I8, 4, 2)),
    "blockwise of data of u2": blockwise("E_CONSTEXPR", 4, data=one(U2, *SHAPE)),
    "blockwise of data of i32": blockwise("E_CONSTEXPR", 4, data=integer_value(*[1] * 64, shape=SHAPE)),
    "blockwise of data that is nowhere": blockwise("E_PROGRAM", data=typed(I8, SHAPE, b"")),
    "blockwise of offsets of another shape": blockwise("E_PROGRAM", offset=one(I8, 4, 1)),
    "blockwise of offsets of another type": blockwise("E_CONSTEXPR", 4, offset=one(U8, 4, 2)),
    "blockwise of another output": of([operation("constexpr_blockwise_shift_scale", output("w", F32), ARRAYS)], "E_SHAPE"),
    "blockwise of another output shape": of(
        [operation("constexpr_blockwise_shift_scale", output("w", F16, (16, 4)), ARRAYS)], "E_SHAPE"
    ),
    "scales of blocks that do not divide": case(lambda forms: forms.scaled(scale=one(F16, 3, 1)), "E_SHAPE"),
    "scales of another type than the values": case(lambda forms: forms.scaled(scale=one(F32, 4, 1)), "E_CONSTEXPR", 4),
    "scales of data that nothing makes": of(
        [operation("constexpr_blockwise_shift_scale", output("w"), {"data": "v", "scale": one(F16, 4, 1)})]
    ),
}  # fmt: skip


def lut(code: str, exit_code: int = 3, bits: int = 4, **changed: str | bytes) -> Case:
    return case(lambda forms: forms.lut(bits, **changed), code, exit_code)


def flat_lut(code: str, exit_code: int = 3, **changed: bytes) -> Case:
    return case(lambda forms: forms.flat_lut(**changed), code, exit_code)


_LUT: dict[str, Case] = {
    "table without indices": without("lut_to_dense", "lut"),
    "indices without a table": without("lut_to_dense", "indices"),
    "table of 15 entries": lut("E_TABLE", lut=one(F16, 1, 1, 15, 1)),
    "table of 17 entries": lut("E_TABLE", lut=one(F16, 1, 1, 17, 1)),
    "table of 8 entries for 4 bits": lut("E_TABLE", lut=one(F16, 1, 1, 8, 1)),
    "table of 32 entries": lut("E_TABLE", lut=one(F16, 1, 1, 32, 1)),
    "table of 512 entries": lut("E_TABLE", lut=one(F16, 1, 1, 512, 1)),
    "table of one entry": lut("E_TABLE", lut=one(F16, 1, 1, 1, 1)),
    "table of no entries": lut("E_TABLE", lut=one(F16, 1, 1, 0, 1)),
    "table of rank 2": lut("E_SHAPE", lut=one(F16, 16, 1)),
    "table of rank 5": lut("E_SHAPE", lut=one(F16, 1, 1, 1, 16, 1)),
    "tables that do not divide": lut("E_SHAPE", lut=one(F16, 3, 1, 16, 1)),
    "no tables": lut("E_SHAPE", lut=one(F16, 0, 1, 16, 1)),
    "table of i8 for an output of f16": lut("E_SHAPE", lut=one(I8, 1, 1, 16, 1)),
    "table of u4": lut("E_CONSTEXPR", 4, lut=one(U4, 1, 1, 16, 1)),
    "indices of i8": lut("E_TABLE", indices=one(I8, *SHAPE)),
    "indices of u8 into 16 entries": lut("E_TABLE", indices=one(U8, *SHAPE)),
    "indices of f16": lut("E_TABLE", indices=one(F16, *SHAPE)),
    "indices that are a constant's name": lut("E_PROGRAM", indices="nobody"),
    "table that is a name of nothing": lut("E_PROGRAM", lut="nobody"),
    "table that is its own result": lut("E_PROGRAM", lut="w"),
    "table that another table makes": case(
        lambda forms: [forms.dense("lut_to_dense", {"indices": one(U4, 1, 1, 16, 1), "lut": one(F16, 1, 1, 1, 1, 16, 1)},
                                   shape=(1, 1, 16, 1), name="v"), *forms.lut(lut="v")], "E_CONSTEXPR", 4
    ),
    "vectors along axis 2 of 2": case(lambda forms: forms.lut(2, vector=2, vector_axis=integer_value(2)), "E_PROGRAM"),
    "vectors along axis -3 of 2": case(lambda forms: forms.lut(2, vector=2, vector_axis=integer_value(-3)), "E_PROGRAM"),
    "vectors of no elements": lut("E_SHAPE", lut=one(F16, 1, 1, 16, 0)),
    "vectors along another axis than the output": case(
        lambda forms: forms.lut(2, vector=2, vector_axis=integer_value(1)), "E_SHAPE"
    ),
    "vectors that make 2^60 elements": case(
        lambda forms: [operation("constexpr_lut_to_dense", output("w", F16, (2**62,)),
                                 {"indices": one(U4, 2), "lut": one(F16, 1, 16, 1)})], "E_SHAPE"
    ),
    "flat indices of one byte too few": flat_lut("E_SIZE", indices=one(U8, 31)),
    "flat indices of one byte too many": flat_lut("E_SIZE", indices=one(U8, 33)),
    "flat indices of i8": flat_lut("E_SIZE", indices=one(I8, 32)),
    "flat table of rank 2": flat_lut("E_TABLE", lut=one(F16, 16, 1)),
    "flat table of 3 entries": flat_lut("E_TABLE", lut=one(F16, 3)),
    "flat shape of f16": flat_lut("E_PROGRAM", shape=one(F16, 2)),
    "flat shape of rank 2": flat_lut("E_PROGRAM", shape=one(U32, 2, 1)),
    "flat shape of 9 dimensions": flat_lut("E_LIMIT", shape=dims_value(*[1] * 9)),
    "flat shape of 2^64 elements": flat_lut("E_SHAPE", shape=dims_value(2**32 - 1, 2**32 - 1)),
    "flat shape of 3 GiB": flat_lut("E_SIZE", shape=dims_value(3 << 30)),
    "flat shape of no elements": flat_lut("E_SIZE", shape=dims_value(0, 16)),
    "flat shape of floats": flat_lut("E_PROGRAM", shape=floats_value((2,), 4.0, 16.0)),
}  # fmt: skip


def sparse(code: str, exit_code: int = 3, **changed: bytes) -> Case:
    return case(lambda forms: forms.sparse(**changed), code, exit_code)


def flat_sparse(code: str, exit_code: int = 3, **changed: bytes) -> Case:
    return case(lambda forms: forms.flat_sparse(**changed), code, exit_code)


_SPARSE: dict[str, Case] = {
    "mask without values": without("sparse_to_dense", "mask"),
    "values without a mask": without("sparse_to_dense", "nonzero_data"),
    "mask of u8": sparse("E_PROGRAM", mask=one(U8, *SHAPE)),
    "mask of another shape than the output": sparse("E_SHAPE", mask=one(U1, 16, 4)),
    "mask of one byte too few": sparse("E_SIZE", mask=bytes_value(U1, SHAPE, bytes(7))),
    "more values than the mask has bits": sparse("E_PART_SHAPE", nonzero_data=one(F16, 65)),
    "values of rank 2": sparse("E_CONSTEXPR", 4, nonzero_data=one(F16, KEPT, 1)),
    "values of a scalar": sparse("E_CONSTEXPR", 4, nonzero_data=one(F16)),
    "values of u4": sparse("E_CONSTEXPR", 4, nonzero_data=one(U4, KEPT)),
    "flat mask of one byte too few": flat_sparse("E_SIZE", mask=one(U8, 7)),
    "flat mask of one byte too many": flat_sparse("E_SIZE", mask=one(U8, 9)),
    "flat mask of bits": flat_sparse("E_SIZE", mask=one(U1, *SHAPE)),
    "flat mask for 3 GiB": flat_sparse("E_SIZE", shape=dims_value(3 << 30)),
    "sparse blockwise without a mask": without("sparse_blockwise_shift_scale", "nonzero_data", "scale"),
    "sparse blockwise without values": without("sparse_blockwise_shift_scale", "data_mask", "scale"),
    "sparse blockwise that nothing makes dense": case(lambda forms: forms.sparse_blockwise()[:1], "E_CONSTEXPR", 4),
    "sparse blockwise whose values are used elsewhere": case(
        lambda forms: [*forms.sparse_blockwise(), used("w_values", "z")], "E_CONSTEXPR", 4
    ),
    "sparse blockwise with another mask": case(
        lambda forms: forms.sparse_blockwise({"mask": one(U1, *SHAPE)}), "E_CONSTEXPR", 4
    ),
    "sparse blockwise with mask and values exchanged": case(
        lambda forms: forms.sparse_blockwise({"mask": "w_values", "nonzero_data": "w_mask"}), "E_CONSTEXPR", 4
    ),
    "sparse blockwise of a mask of u8": case(lambda forms: forms.sparse_blockwise(data_mask=one(U8, *SHAPE)), "E_PROGRAM"),
    "sparse blockwise of values of rank 2": case(
        lambda forms: forms.sparse_blockwise(nonzero_data=one(I8, KEPT, 1)), "E_PROGRAM"
    ),
    "sparse blockwise of more values than bits": case(
        lambda forms: forms.sparse_blockwise(nonzero_data=one(I8, 65)), "E_PART_SHAPE"
    ),
    "sparse blockwise of scales that do not divide": case(
        lambda forms: forms.sparse_blockwise(scale=one(F16, 3, 1)), "E_SHAPE"
    ),
    "sparse table without indices": without("lut_to_sparse", "indices_mask", "lut"),
    "sparse table without a mask": without("lut_to_sparse", "indices_nonzero_data", "lut"),
    "sparse table of 15 entries": case(lambda forms: forms.sparse_lut(lut=one(F16, 1, 1, 15, 1)), "E_TABLE"),
    "sparse table of rank 3": case(lambda forms: forms.sparse_lut(lut=one(F16, 1, 16, 1)), "E_SHAPE"),
    "sparse table of indices of rank 2": case(
        lambda forms: forms.sparse_lut(indices_nonzero_data=one(U4, KEPT, 1)), "E_PROGRAM"
    ),
    "sparse table of a mask of u8": case(lambda forms: forms.sparse_lut(indices_mask=one(U8, *SHAPE)), "E_PROGRAM"),
    "dense of what is dense": case(
        lambda forms: [forms.dense("blockwise_shift_scale", ARRAYS, name="v"),
                       forms.dense("sparse_to_dense", {"nonzero_data": "v", "mask": one(U1, *SHAPE)})], "E_CONSTEXPR", 4,
    ),
}  # fmt: skip

CASES: dict[str, Case] = {**_AFFINE, **_BLOCKWISE, **_LUT, **_SPARSE}
