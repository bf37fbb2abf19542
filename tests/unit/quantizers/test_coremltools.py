"""The quantizers of coremltools' bytes: what the tool itself wrote, the rules by hand, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs.affine import Affine
from flyweight.codecs.blockwise import Blockwise
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from support import GOLDEN
from support.importance import weighing

coremltools, symmetric = QUANTIZERS["coremltools"], QUANTIZERS["coremltools_symmetric"]


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def test_the_bytes_of_coremltools() -> None:
    """tests/golden/PROVENANCE.md"""
    with np.load(GOLDEN / "coreml_linear.npz") as golden:
        cases = sorted({name.rpartition(" ")[0] for name in golden})
        assert len(cases) == 16
        for case in cases:
            _, data, mode, block = case.split(" ")
            weight, zero = golden[f"{case} weight"], golden.get(f"{case} zero")
            codec = Blockwise(data, block, DType.parse(f"f{8 * weight.itemsize}").label, "" if zero is None else "data")
            quantize = symmetric if mode == "linear_symmetric" and zero is not None else coremltools
            spec = f32(*weight.shape)
            parts = quantize(weight, codec, spec)
            codes = golden[f"{case} codes"].astype(np.uint8).reshape(1, -1)
            expected = codec.store(spec, codes, golden[f"{case} scale"], np.zeros(1) if zero is None else zero)
            for name, part in expected.items():
                assert parts[name].tobytes() == part.tobytes(), (case, name)


def test_its_grid_is_symmetric_and_rounded_only_once_codes_are_found() -> None:
    """The scale 0.1 / 127 is no f16, and the quotient is rounded to f16 before it is to an integer."""
    values = np.float16([[0.1, -0.1, 0.05, 0.0123]])
    parts = coremltools(values, Blockwise("i8", "1"), f32(1, 4))
    scale = (np.float16(0.2) / np.float16(254)).astype(np.float16)
    assert parts["scale"] == scale
    assert parts["codes"].view(np.int8).tolist() == np.rint(values / scale).astype(np.int8).tolist()
    assert parts["codes"].view(np.int8)[0, 1] == -127


def test_zero_points() -> None:
    values = np.float32([[-1, 0, 3, 1], [1, 2, 3, 4], [0, 0, 0, 0]])
    linear = coremltools(values, Blockwise("u4", "1", "f32", "data"), f32(3, 4))
    assert linear["scale"].reshape(-1).tolist() == [np.float32(4) / 15, np.float32(4) / 15, 0]
    assert linear["offset"].tolist() == [0x04, 0x00]  # 4 of −1 … 3, 0 of 0 … 4, 0 of zeros
    assert linear["codes"].tolist() == [[0x40, 0x8F], [0x74, 0xFB], [0x00, 0x00]]  # 2 is just below 7.5 steps
    middle = symmetric(values, Blockwise("u4", "1", "f32", "data"), f32(3, 4))
    assert middle["offset"].tolist() == [0x77, 0x07]
    assert middle["codes"].tolist() == [[0x75, 0x9E], [0xA9, 0xEC], [0x00, 0x00]]  # and just below 3.5


def test_weights_are_rounded_to_the_type_of_the_scale_first() -> None:
    """A model of f16 has no others, whatever type they come in."""
    values = np.random.default_rng(1).standard_normal((8, 32)).astype(np.float32)
    codec = Blockwise("i4", "1x16")
    wide, narrow = coremltools(values, codec, f32(8, 32)), coremltools(values.astype(np.float16), codec, f32(8, 32))
    assert all(wide[name].tobytes() == narrow[name].tobytes() for name in wide)


@pytest.mark.parametrize(
    ("top", "codec"),
    [(60000, Blockwise("i8", "1")), (600, Blockwise("u8", "1", offset="data")), (1e6, Blockwise("i8", "1"))],
    ids=["range", "zero", "weights"],
)
def test_what_f16_is_too_narrow_for_is_refused(top: float, codec: Blockwise) -> None:
    values = np.float32([[-top, top, 1, 0]])
    with pytest.raises(UnsupportedError) as caught:
        coremltools(values, codec, f32(1, 4))
    assert caught.value.code == "E_RANGE"
    wide = Blockwise(codec.data, codec.block, "f32", codec.offset)
    assert np.allclose(wide.decode(f32(1, 4), coremltools(values, wide, f32(1, 4))), values, atol=top / 200)


@pytest.mark.parametrize(
    "codec",
    [
        Blockwise("u8", "1"),
        Blockwise("i8", "1", offset="f16"),
        Blockwise("f16", "1"),
        Affine(8, 0, "symmetric"),
    ],
    ids=lambda codec: str(codec.spec),
)
def test_codecs_it_has_no_bytes_for(codec: Blockwise) -> None:
    for quantize in (coremltools, symmetric):
        with pytest.raises(UnsupportedError) as caught:
            quantize(np.ones((2, 8)), codec, f32(2, 8))
        assert caught.value.code == "E_QUANTIZER"


def test_nan_is_refused_and_importance_changes_nothing() -> None:
    values = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    codec = Blockwise("i8", "1")
    parts, weighed = (coremltools(values, codec, f32(4, 8), weighing(by)) for by in (None, np.arange(8)))
    assert all(parts[name].tobytes() == weighed[name].tobytes() for name in parts)
    with pytest.raises(UnsupportedError):
        coremltools(values, codec, f32(4, 8), weighing(np.arange(7)))
    values[1, 1] = np.nan
    with pytest.raises(UnsupportedError) as caught:
        coremltools(values, codec, f32(4, 8))
    assert caught.value.code == "E_NONFINITE"


def test_a_tensor_of_nothing() -> None:
    parts = coremltools(np.empty((0, 8)), Blockwise("u4", "1", offset="data"), f32(0, 8))
    assert {name: part.size for name, part in parts.items()} == {"codes": 0, "scale": 0, "offset": 0}
