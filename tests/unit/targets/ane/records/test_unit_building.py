"""Kernel units of compressed tensors: read back through their records, they are the tensors."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.codecs import codec_for, packing
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec
from flyweight.sources import MemorySource
from flyweight.targets.ane.records.activation_functions import build
from flyweight.targets.ane.records.kernel_unit import KernelUnit, Pal, Vector, Weights
from flyweight.targets.ane.records.unit_building import describe, stored_weights, unit_pieces
from support import GOLDEN

Array = np.ndarray[Any, Any]


def encoded(codec: str, array: Array, dtype: DType = DType.F32, **params: Any) -> EncodedTensor:
    spec = TensorSpec(array.shape, dtype)
    fitted = codec_for(CodecSpec(codec, params)).fit(spec, array)
    return EncodedTensor(spec, fitted.spec, dict(fitted.encode(spec, array)))


def decoded(tensor: EncodedTensor) -> Array:
    return codec_for(tensor.codec).decode(tensor.spec, tensor.parts)


def draw(shape: tuple[int, ...], zeros: float = 0.0) -> Array:
    rng = np.random.default_rng(5)
    return np.where(rng.random(shape) < zeros, 0, rng.normal(0, 0.05, shape)).astype(np.float16)


def build_unit(tensor: EncodedTensor, engines: int, **options: Any) -> KernelUnit:
    """The unit of a tensor, read from the bytes that are written."""
    return KernelUnit.read(MemorySource(b"".join(unit_pieces(stored_weights(tensor), engines, **options))))


def values_of(unit: KernelUnit, shape: tuple[int, ...], *, sparse: bool = False) -> Array:
    """The weights of a unit, found as an engine would: through the records of its groups."""
    values = np.empty((shape[0], prod(shape[1:])), np.float32)
    for engine, groups in enumerate(unit.groups.engines):
        for group, numbers in zip(groups, unit.groups.channels_of(engine), strict=True):
            at = group.offset
            for channel in numbers:
                taken = (_sparse if sparse else _dense)(unit, channel, unit.weights[at:], values[channel])
                at += taken
    return values.reshape(shape)


def _sparse(_: KernelUnit, channel: int, data: Array, out: Array) -> int:
    width = -(-out.size // 8)
    kept = np.unpackbits(data[:width], bitorder="little")[: out.size].astype(bool)
    nbytes = width + 2 * int(kept.sum())
    out[:] = 0
    out[kept] = np.frombuffer(bytes(data[width:nbytes]), np.float16)
    return nbytes


def _dense(unit: KernelUnit, channel: int, data: Array, out: Array) -> int:
    descriptor, kinds = unit.descriptor, {1: np.int8, 2: np.uint8, 4: np.float16}
    bits, typeno = descriptor.weights.bitdepth, descriptor.weights.typeno
    nbytes = packing.packed_width("little", bits, out.size) if bits < 8 else out.size * bits // 8
    own = np.ascontiguousarray(data[:nbytes])
    if descriptor.pal is not None:
        assert unit.tables is not None
        pal = descriptor.pal
        tables = unit.tables.view(kinds[pal.palette_format]).reshape(pal.num_luts, -1)
        codes = packing.unpack("little", own[None], bits, out.size)[0] if bits < 8 else own
        numbers = tables[channel // -(-len(unit_channels(unit)) // pal.num_luts)][codes]
    else:
        numbers = own.view({2: np.int8, 3: np.uint8, 5: np.float16}[typeno])
    if unit.scale is None:
        out[:] = numbers
    else:  # the product of two narrow numbers is exact in f32 before its one rounding
        scale = unit.scale.view(np.float16)[channel].astype(np.float32)
        out[:] = (scale * numbers.astype(np.float32)).astype(np.float16)
    return nbytes


def unit_channels(unit: KernelUnit) -> list[int]:
    return [c for engine in range(len(unit.groups.engines)) for own in unit.groups.channels_of(engine) for c in own]


SHAPES = [(16, 32), (13, 7), (6, 3, 3, 5), (3, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("engines", [1, 4, 8])
def test_dense_f16(shape: tuple[int, ...], engines: int) -> None:
    array = draw(shape)
    unit = build_unit(encoded("raw", array, DType.F16), engines)
    assert np.array_equal(values_of(unit, shape), array.astype(np.float32))
    assert unit.descriptor.weights == Weights(5, 16, unit.weights.size)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [0, 2])
@pytest.mark.parametrize(("table", "scale"), [("f16", ""), ("f16", "f16"), ("i8", "f16")])
def test_palettes(shape: tuple[int, ...], bits: int, group: int, table: str, scale: str) -> None:
    tensor = encoded("palette", draw(shape).astype(np.float32), bits=bits, group=group, table=table, scale=scale)
    unit = build_unit(tensor, 4)
    entry = 1 if table == "i8" else 2
    assert unit.descriptor.pal == Pal(1 if table == "i8" else 4, bits, -(-shape[0] // group) if group else 1, entry << bits)
    assert unit.descriptor.weights.typeno == {4: 9, 8: 3}[bits]
    assert np.array_equal(values_of(unit, shape), decoded(tensor))


@pytest.mark.parametrize("block", ["1", ""])
def test_palettes_with_a_scale_for_each_channel(block: str) -> None:
    inner = CodecSpec("palette", {"bits": 4})
    tensor = encoded("scaled", draw((16, 32)).astype(np.float32), inner=inner, block=block)
    unit = build_unit(tensor, 4)
    assert unit.descriptor.scale == Vector(5, 16)
    assert np.array_equal(values_of(unit, (16, 32)), decoded(tensor))


def test_one_scale_for_all_tables() -> None:
    tensor = encoded("palette", draw((16, 32)).astype(np.float32), group=4, table="i8", scale="f16", scale_per="tensor")
    assert np.array_equal(values_of(build_unit(tensor, 4), (16, 32)), decoded(tensor))


def test_codebooks_take_32_and_512_bytes() -> None:
    tensors = (encoded("palette", draw((16, 32)).astype(np.float32), bits=bits) for bits in (4, 8))
    sizes = [unit.tables.nbytes for tensor in tensors if (unit := build_unit(tensor, 4)).tables is not None]
    assert sizes == [32, 512]


def test_the_worked_example() -> None:
    """Weights 1, 0, 0, 1 and a codebook of 0x0000, 0x3c00 …: indices 0x01 0x10."""
    table = np.zeros(16, np.float16)
    table[1] = 1
    parts = {"indices": np.array([0x01, 0x10], np.uint8), "tables": table.reshape(1, 1, 16, 1)}
    tensor = EncodedTensor(TensorSpec((1, 4), DType.F32), CodecSpec("palette", {"bits": 4}), parts)
    assert codec_for(tensor.codec).decode(tensor.spec, parts).tolist() == [[1, 0, 0, 1]]
    unit = build_unit(tensor, 4)
    assert unit.weights.tolist() == [0x01, 0x10]
    assert unit.tables is not None
    assert unit.tables.view("<u2")[:2].tolist() == [0x0000, 0x3C00]


@pytest.mark.parametrize("block", ["1", ""])
@pytest.mark.parametrize("data", ["i8", "u8"])
def test_bytes_with_scales(block: str, data: str) -> None:
    if data == "u8":
        spec, codec = TensorSpec((8, 6), DType.F32), CodecSpec("blockwise", {"data": "u8", "block": block})
        codes = np.arange(48, dtype=np.uint8).reshape(codec_for(codec).layout(spec)["codes"].shape)
        scale = np.float16(np.linspace(0.5, 2, 8 if block else 1)).reshape(-1, 1)
        tensor = EncodedTensor(spec, codec, {"codes": codes, "scale": scale})
    else:
        tensor = encoded("blockwise", draw((8, 6)).astype(np.float32), data="i8", block=block)
    unit = build_unit(tensor, 4)
    assert unit.descriptor.scale == Vector(5, 8)
    assert unit.descriptor.weights.typeno == {"i8": 2, "u8": 3}[data]
    assert np.array_equal(values_of(unit, (8, 6)), decoded(tensor))


def test_offsets_of_zero_are_none() -> None:
    """Core ML's older operation always has them."""
    tensor = encoded("blockwise", draw((8, 6)).astype(np.float32))
    zeros = np.zeros_like(tensor.parts["scale"], np.int8)
    codec = tensor.codec.with_params(offset="data")
    zeros = zeros.reshape(codec_for(codec).layout(tensor.spec)["offset"].shape)
    with_offsets = EncodedTensor(tensor.spec, codec, {**tensor.parts, "offset": zeros})
    assert b"".join(build_unit(with_offsets, 4).pieces()) == b"".join(build_unit(tensor, 4).pieces())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["mask", "stream"])
def test_sparse_f16(shape: tuple[int, ...], form: str) -> None:
    array = draw(shape, zeros=0.63)
    unit = build_unit(encoded("sparse", array, DType.F16, form=form), 4)
    assert np.array_equal(values_of(unit, shape, sparse=True), array.astype(np.float32))


def test_weights_that_coremltools_compressed() -> None:
    """Every weight that has a form here comes back; the others are refused."""
    built, refusals = Counter[str](), 0
    for package in ("affine", "blockwise", "packed_lut", "sparse", "packed_sparse", "layers", "ios16_int8"):
        with open_checkpoint(GOLDEN / "coreml" / f"{package}.mlpackage") as checkpoint:
            for name in checkpoint:
                tensor = checkpoint.encoded(name)
                try:
                    unit = build_unit(tensor, 4)
                except UnsupportedError:
                    refusals += 1
                    continue
                values = values_of(unit, tensor.spec.shape, sparse=stored_weights(tensor).sparse)
                assert np.array_equal(values, checkpoint[name].astype(np.float32)), (package, name)
                built[tensor.codec.name] += 1
    assert built.keys() == {"raw", "blockwise", "palette", "sparse"}
    assert built.total() >= 20
    assert refusals


def test_sparse_streams_at_one_sixteenth_plus_density() -> None:
    array = draw((64, 512), zeros=0.63)
    density = np.count_nonzero(array) / array.size
    unit = build_unit(encoded("sparse", array, DType.F16), 4)
    padding = 3 * 64  # engines begin at multiples of 64 bytes
    assert (1 / 16 + density) * array.nbytes == pytest.approx(unit.weights.size, abs=padding)
    assert round(unit.weights.size / array.nbytes, 2) == 0.43


def test_activation_and_bias_have_sections_of_their_own() -> None:
    bias = np.linspace(-1, 1, 16)
    unit = build_unit(encoded("raw", draw((16, 32)), DType.F16), 4, activation=build("tanh"), bias=bias)
    assert unit.activation == build("tanh")
    assert unit.bias is not None
    assert np.array_equal(unit.bias.view(np.float16), bias.astype(np.float16))


def test_describing_needs_no_copy_of_the_weights() -> None:
    tensor = encoded("raw", draw((16, 32)), DType.F16)
    assert describe(stored_weights(tensor), 4) == (build_unit(tensor, 4).descriptor, build_unit(tensor, 4).groups)


def test_larger_kernels_have_smaller_groups() -> None:
    sizes = {
        shape: build_unit(encoded("raw", draw(shape), DType.F16), 1).groups for shape in ((16, 4), (16, 4, 2, 2), (16, 4, 3, 3))
    }
    assert [{group.channels for group in groups} for groups in sizes.values()] == [{8}, {2}, {1}]


def refused(tensor: EncodedTensor, match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        build_unit(tensor, 4)


def test_what_has_no_form_is_refused() -> None:
    weights = draw((16, 32)).astype(np.float32)
    refused(encoded("affine", weights), "no form for affine")
    refused(encoded("raw", weights), "f16, not f32")
    refused(encoded("raw", draw((16,)), DType.F16), "output channels")
    refused(encoded("palette", weights, bits=2), "4 or 8 bits")
    refused(encoded("palette", weights, bits=4, vector=2, vector_axis=0), "4 or 8 bits")
    refused(encoded("palette", weights, bits=4, table="f32"), "4 or 8 bits")
    offsets = encoded("palette", weights, table="u8", scale="f16", offset="u8")
    offsets.parts["offset"][...] = 3
    refused(offsets, "no section for offsets")
    refused(encoded("scaled", weights, inner=CodecSpec("raw")), "one scale")
    refused(encoded("scaled", weights, inner=CodecSpec("palette", {"table": "i8", "scale": "f16"})), "one scale")
    refused(encoded("scaled", weights, inner=CodecSpec("palette"), block="1x8"), "one for each output channel")
    refused(encoded("palette", weights, bits=4, group=8, axis=1), "output channels")
    refused(encoded("sparse", draw((16, 32), 0.5), DType.F16, form="indices"), "mask")
    refused(encoded("blockwise", weights, data="i4"), "are bytes")
    refused(encoded("blockwise", np.abs(weights), offset="data"), "no section for offsets")
    refused(encoded("blockwise", weights, block="1x8"), "one for each output channel")
    refused(encoded("blockwise", weights, scale="f32"), "f16")


def test_a_bias_of_another_length_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="16 channels"):
        build_unit(encoded("raw", draw((16, 32)), DType.F16), 4, bias=np.zeros(15))


def test_parts_that_do_not_agree_are_refused() -> None:
    tensor = encoded("sparse", draw((16, 32), 0.5), DType.F16)
    flipped = tensor.parts["mask"].copy()
    flipped[0, 0] ^= 1
    with pytest.raises(MalformedError, match="the mask keeps"):
        build_unit(EncodedTensor(tensor.spec, tensor.codec, {**tensor.parts, "mask": flipped}), 4)
    with pytest.raises(MalformedError, match="not those of"):
        build_unit(EncodedTensor(tensor.spec, tensor.codec, {**tensor.parts, "mask": flipped[1:]}), 4)
