"""Blocks against gguf-py: the same floats from the same bytes, the same bytes from the same floats."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from flyweight import kernels
from flyweight.codecs import ggml
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec

CODECS = {kind.name: kind() for kind in ggml.CODECS}
ACTIVATIONS = ("q8_1", "q8_k")  # gguf-py has their sizes but neither direction
DECODED = [name for name in CODECS if name not in ACTIVATIONS]
ENCODED = [name for name in kernels.ENCODED if name not in ACTIVATIONS]  # the searches are our own
SHAPES = [(256,), (1, 512), (7, 768), (576, 1536), (3, 5, 256), (49, 2, 2, 256)]


def kind_of(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.upper()]


@pytest.fixture(params=kernels.available(), autouse=True)
def every_set(request: pytest.FixtureRequest):
    """Each kernel set this machine runs, the NumPy definition among them."""
    before = kernels.active()
    kernels.use(request.param)
    yield
    kernels.use(before)


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.all((ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))))


def decoded_alike(name: str, spec: TensorSpec, blocks: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(blocks, kind_of(name))
    return same_bits(CODECS[name].decode(spec, {"blocks": blocks}), theirs)


def encoded_alike(name: str, values: np.ndarray) -> bool:
    ours = CODECS[name].encode(TensorSpec(values.shape, DType.F32), values)["blocks"]
    return np.array_equal(ours, gguf.quants.quantize(values, kind_of(name)))


def test_sizes() -> None:
    theirs = {name: gguf.GGML_QUANT_SIZES[kind_of(name)] for name in CODECS}
    assert theirs.pop("q8_1") == (32, 40)  # two f32 there, two f16 (36 bytes) in ggml itself
    assert theirs == {name: (codec.block_size, codec.block_bytes) for name, codec in CODECS.items() if name != "q8_1"}


def test_the_list_of_what_gguf_py_lacks() -> None:
    """When gguf-py learns these, they belong in the comparison."""
    for name in ACTIVATIONS:
        with pytest.raises(NotImplementedError):
            gguf.quants.dequantize(np.zeros((1, CODECS[name].block_bytes), np.uint8), kind_of(name))
    for name in set(DECODED) - set(ENCODED):
        with pytest.raises(NotImplementedError):
            gguf.quants.quantize(np.zeros((1, 256), np.float32), kind_of(name))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", DECODED)
def test_decode_any_bytes(name: str, shape: tuple[int, ...]) -> None:
    """Random bytes: every code, every scale, subnormal, infinite and NaN ones among them."""
    spec = TensorSpec(shape, DType.F32)
    blocks = np.random.default_rng(len(shape)).integers(0, 256, CODECS[name].layout(spec)["blocks"].shape, dtype=np.uint8)
    assert decoded_alike(name, spec, blocks)


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7B, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("name", DECODED)
def test_decode_constant_bytes(name: str, byte: int) -> None:
    spec = TensorSpec((2, 512), DType.F32)
    assert decoded_alike(name, spec, np.full(CODECS[name].layout(spec)["blocks"].shape, byte, np.uint8))


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1e-3, 0.02, 1.0, 300.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ENCODED)
def test_encode_normal_weights(name: str, shape: tuple[int, ...], scale: float) -> None:
    rng = np.random.default_rng(int(-np.log2(scale) + 200))
    assert encoded_alike(name, (rng.standard_normal(shape) * scale).astype(np.float32))


@pytest.mark.parametrize("name", ENCODED)
def test_encode_edges(name: str) -> None:
    """Constants, one-hot rows, exact halves between two codes, repeated extremes of both signs, outliers."""
    rng = np.random.default_rng(11)
    rows = np.zeros((12, 256), np.float32)
    rows[1] = -0.0
    rows[2] = 1.0
    rows[3] = -1.0
    rows[4, ::32] = 5.0
    rows[5, 31::32] = -5.0
    rows[6] = np.arange(256) % 32 / 2
    rows[7] = np.arange(256) % 32 / 2 - 8
    rows[8] = rng.choice(np.float32([2.0, -2.0]), 256)
    rows[9] = rng.standard_normal(256) * 1e-3
    rows[9, ::32] = 1000.0
    rows[10] = np.arange(256) % 32 + 1
    rows[11] = rng.choice(np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0]), 256)
    assert encoded_alike(name, rows)


def test_mxfp4_next_to_powers_of_two() -> None:
    """gguf-py takes the exponent from a logarithm in f32, which rounds up just below a power of two."""
    powers = np.ldexp(np.float32(1), np.arange(-120, 127)).view(np.uint32)
    bits = (powers[:, None] + np.arange(-64, 65)).astype(np.uint32).ravel()
    values = np.zeros((len(bits), 32), np.float32)
    values[:, 9] = bits.view(np.float32)
    assert encoded_alike("mxfp4", values)


@pytest.mark.parametrize("name", ENCODED)
def test_what_we_encode_they_decode(name: str) -> None:
    values = np.random.default_rng(12).standard_normal((64, 576)).astype(np.float32)
    spec = TensorSpec(values.shape, DType.F32)
    assert decoded_alike(name, spec, CODECS[name].encode(spec, values)["blocks"])
