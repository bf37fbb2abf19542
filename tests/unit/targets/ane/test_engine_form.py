"""What codecs are in the engine's terms."""

from __future__ import annotations

import pytest

from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.targets.ane.engine_form import engine_form, is_engine_codec
from flyweight.targets.ane.facts.fact import Profile
from support.engine_weights import form_of

SQUARE = TensorSpec((64, 64), DType.F16)


def blockwise(**params: str) -> CodecSpec:
    return CodecSpec("blockwise", params)


def palette(**params: int | str) -> CodecSpec:
    return CodecSpec("palette", params)


@pytest.mark.parametrize(
    ("codec", "text", "number"),
    [
        (RAW, "fp16", 4),
        (blockwise(), "int8", 1),
        (blockwise(block=""), "int8", 1),
        (blockwise(data="u8", offset="data"), "uint8 with zero points", 2),
        (blockwise(block="1x32"), "blockwise int8", 1),
        (blockwise(block="8x16"), "blockwise int8", 1),
        (blockwise(block="4"), "blockwise int8", 1),
        (blockwise(data="i4"), "int4", 31),
        (blockwise(data="u4"), "uint4", None),
        (palette(), "4-bit palette of fp16", 21),
        (palette(bits=8), "8-bit palette of fp16", 27),
        (palette(bits=6, group=16), "6-bit palette of fp16, 4 codebooks", 25),
        (palette(bits=4, vector=2, vector_axis=0), "4-bit palette of fp16, vectors of 2", 21),
        (palette(bits=4, table="i8", scale="f16"), "4-bit palette of int8 with scales", 19),
        (palette(table="i8", scale="f16", offset="i8"), "4-bit palette of int8 with scales and zero points", 19),
        (CodecSpec("scaled", {"inner": palette(), "block": "1"}), "4-bit palette of fp16 with scales", 21),
        (CodecSpec("sparse", {"form": "stream", "stored": 1024, "inner": RAW}), "sparse fp16, 25% kept", 4),
        (CodecSpec("sparse_codes", {"inner": palette(), "stored": 1024}), "sparse 4-bit palette of fp16, 25% kept", 21),
        (CodecSpec("sparse_codes", {"inner": blockwise(), "stored": 2048}), "sparse int8, 50% kept", 1),
        (CodecSpec("fp8"), "e4m3", 5),
        (CodecSpec("fp8", {"rows": 0, "columns": 0}), "e4m3", 5),
        (CodecSpec("fp8", {"rows": 32, "columns": 32}), "blockwise e4m3", 5),
    ],
    ids=str,
)
def test_forms(codec: CodecSpec, text: str, number: int | None) -> None:
    form = engine_form(SQUARE, codec)
    assert str(form) == text
    assert form is not None
    assert form.kernel_format(Profile.SEED).value == number


@pytest.mark.parametrize(
    "codec",
    [
        CodecSpec("q4_k"),
        CodecSpec("affine"),
        CodecSpec("nobody knows it"),
        blockwise(data="f16"),
        CodecSpec("fp8", {"format": "e5m2"}),
        CodecSpec("sparse", {"inner": CodecSpec("affine"), "stored": 64}),
        blockwise(block="1x48"),
        palette(bits=5),
        CodecSpec("palette", {"nonsense": 1}),
    ],
    ids=str,
)
def test_what_has_no_form(codec: CodecSpec) -> None:
    assert engine_form(SQUARE, codec) is None


def test_tensors_without_a_form() -> None:
    assert engine_form(TensorSpec((), DType.F16), RAW) is None
    assert engine_form(TensorSpec((0, 4), DType.F16), RAW) is None
    assert engine_form(TensorSpec((4, 4), DType.I32), RAW) is None
    assert is_engine_codec(RAW)
    assert not is_engine_codec(CodecSpec("q4_k"))


def test_output_channels_may_be_another_axis() -> None:
    """A scale for each column of a square matrix is one for each output channel of a matmul, and of a linear layer none."""
    columns = blockwise(block="0x1")
    linear, matmul = (engine_form(SQUARE, columns, axis) for axis in (0, -1))
    assert linear is not None
    assert matmul is not None
    assert (linear.is_blockwise, matmul.is_blockwise) == (True, False)
    groups = palette(group=16, axis=1)
    assert [engine_form(SQUARE, groups, axis).along_channels for axis in (0, 1)] == [False, True]  # type: ignore[union-attr]
    vectors = palette(vector=2, vector_axis=1)
    assert [engine_form(SQUARE, vectors, axis).along_channels for axis in (0, 1)] == [False, True]  # type: ignore[union-attr]


def test_codebooks() -> None:
    assert form_of("lut4").lut_bytes == 32
    assert form_of("lut8").lut_bytes == 512
    assert form_of("lut8-v2").lut_bytes == 1024
    assert form_of("fp16").lut_bytes == 0
    assert form_of("lut4-g16", (100, 8)).tables == 7
