"""The lossless codec: every bit comes back, the sizes are what fit found, and a conversion there and back is the identity."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.codecs.lossless import Lossless
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from support.toys import write_toy_llama

FLOATS = [DType.BF16, DType.F16, DType.F32]


def round_trip(values: np.ndarray, dtype: DType) -> Lossless:
    spec = TensorSpec(values.shape, dtype)
    codec = Lossless().fit(spec, values)
    assert isinstance(codec, Lossless)
    assert codec.decode(spec, codec.encode(spec, values)).tobytes() == values.tobytes()
    return codec


def ratio(codec: Lossless, spec: TensorSpec) -> float:
    return sum(part.nbytes for part in codec.layout(spec).values()) / spec.nbytes


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_every_word_there_is(dtype: DType) -> None:
    """NaN payloads, both zeros, infinities, subnormals: all 65,536 words at once, in an order that mixes them."""
    words = np.random.default_rng(1).permutation(1 << 16).astype(np.uint16).reshape(64, 1024)
    round_trip(words.view(dtype.numpy), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (3, 0), (63,), (64,), (65,), (5, 7, 3), (4095,), (4096,), (4097,), (3, 4099)]
)
@pytest.mark.parametrize("density", [1.0, 0.1, 0.0])
def test_any_shape_and_density(dtype: DType, shape: tuple[int, ...], density: float) -> None:
    rng = np.random.default_rng(2)
    values = np.where(rng.random(shape) < density, rng.standard_normal(shape), 0).astype(dtype.numpy)
    round_trip(np.asarray(values), dtype)


def test_the_bitmap_is_chosen_when_it_pays_and_minus_zero_is_not_zero() -> None:
    values = np.zeros((16, 4096), ml_dtypes.bfloat16)
    values[3, 5], values[3, 6] = 1.5, -0.0
    codec = round_trip(values, DType.BF16)
    assert codec.stored == 2
    assert round_trip((values.astype(np.float32) + 1).astype(ml_dtypes.bfloat16), DType.BF16).stored == -1


def test_weights_shrink_as_the_code_says() -> None:
    """3 + 8 bits, 8 more for the 2 % outside the seven exponents, and 32 per run of 4096."""
    values = (np.random.default_rng(3).standard_normal((256, 4096)) * 0.02).astype(ml_dtypes.bfloat16)
    codec, spec = round_trip(values, DType.BF16), TensorSpec(values.shape, DType.BF16)
    assert ratio(codec, spec) == pytest.approx((11 + 8 * codec.escapes / spec.size + 32 / 4096) / 16)
    assert ratio(codec, spec) < 0.70


def test_strided_memory_encodes_alike() -> None:
    values = np.random.default_rng(4).standard_normal((128, 96)).astype(np.float32)
    spec = TensorSpec((96, 128), DType.F32)
    codec = Lossless().fit(spec, values.T)
    assert codec.decode(spec, codec.encode(spec, values.T)).tobytes() == np.ascontiguousarray(values.T).tobytes()


def test_values_it_was_not_fitted_to_are_refused() -> None:
    spec = TensorSpec((64,), DType.F32)
    codec = Lossless().fit(spec, np.ones(64, np.float32))
    with pytest.raises(UnsupportedError) as caught:
        codec.encode(spec, np.ldexp(np.float32(1), np.arange(64)))
    assert caught.value.code == "E_FIT"


@pytest.mark.parametrize(
    "params", [{"base": 250}, {"base": -1}, {"escapes": -1}, {"escapes": 2**32}, {"stored": -2}, {"base": True}]
)
def test_parameters_out_of_range(params: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Lossless(**params)


@pytest.mark.parametrize("params", [{"escapes": 65}, {"stored": 65}, {"stored": 3, "escapes": 4}])
def test_parameters_that_do_not_describe_the_tensor(params: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError):
        Lossless(**params).layout(TensorSpec((64,), DType.BF16))
    with pytest.raises(UnsupportedError):
        Lossless(base=26).layout(TensorSpec((64,), DType.F16))


def masked() -> tuple[Lossless, TensorSpec, dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    values = np.where(rng.random((8, 1000)) < 0.3, rng.standard_normal((8, 1000)), 0).astype(np.float32)
    spec = TensorSpec(values.shape, DType.F32)
    codec = Lossless().fit(spec, values)
    assert isinstance(codec, Lossless)
    assert codec.stored >= 0
    assert codec.escapes > 0
    return codec, spec, {name: part.copy() for name, part in codec.encode(spec, values).items()}


@pytest.mark.parametrize(
    ("part", "at", "flip"), [("bitmap", 0, 1), ("starts", 0, 1), ("planes", 0, ~0), ("bitmap", 15, 1 << 63)]
)
def test_parts_that_disagree_are_refused(part: str, at: int, flip: int) -> None:
    codec, spec, parts = masked()
    flat = parts[part].reshape(-1)
    flat[at] ^= flat.dtype.type(flip % 2 ** (8 * flat.itemsize))
    with pytest.raises(MalformedError) as caught:
        codec.decode(spec, parts)
    assert caught.value.code == "E_PART_VALUES"
    assert codec.check_values(spec, parts) is not None


def test_there_and_back_is_the_identity(tmp_path: Path) -> None:
    toy = write_toy_llama(tmp_path / "toy")
    flyweight.convert(toy, tmp_path / "plain")
    report = flyweight.convert(tmp_path / "plain", tmp_path / "small.safetensors", quant="lossless")
    with flyweight.open(tmp_path / "small.safetensors") as small:
        codecs = {entry.codec.name for entry in small.manifest.entries.values()}
        assert "lossless" in codecs
    assert all(tensor.relative_error in (None, 0.0) for tensor in report.tensors)
    assert flyweight.verify(tmp_path / "small.safetensors").ok
    assert flyweight.diff(tmp_path / "plain", tmp_path / "small.safetensors").identical
    flyweight.convert(tmp_path / "small.safetensors", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (tmp_path / "plain" / "model.safetensors").read_bytes()
    again = flyweight.convert(tmp_path / "small.safetensors", tmp_path / "again.safetensors")
    assert {tensor.action for tensor in again.tensors} == {"remux"}
