"""Sparse tensors: the places and the values agree or are refused, and the inner codec may be any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.sparse import Sparse
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from support.toys import llama_tensors, safetensors_bytes

VALUES = np.float32([[0, 0, 1.5, 0, 0, 0, 0, 0, -2, 0], [3, 0, 0, 0, 0, 0, 0, -0.0, 0, 0]])
SPEC = TensorSpec(VALUES.shape, DType.F32)


def test_the_bytes() -> None:
    codec = Sparse().fit(SPEC, VALUES)
    parts = codec.encode(SPEC, VALUES)
    assert parts["mask"].tolist() == [[0b100, 0b1], [0b10000001, 0]]
    assert parts["inner.data"].tobytes() == np.float32([1.5, -2, 3, -0.0]).tobytes()  # −0 is not all zero bits
    stream = Sparse(form="stream").fit(SPEC, VALUES).encode(SPEC, VALUES)
    assert stream["mask"].tolist() == [0b100, 0b101, 0b10]  # the second row starts at bit 10
    assert stream["inner.data"].tobytes() == parts["inner.data"].tobytes()
    listed = Sparse(form="indices").fit(SPEC, VALUES).encode(SPEC, VALUES)
    assert listed["indices"].tolist() == [2, 8, 10, 17]
    assert listed["indices"].dtype == np.uint32


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.I8, DType.U8, DType.I32, DType.F8_E4M3])
@pytest.mark.parametrize("form", ["mask", "stream", "indices"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 5), (5, 0), (3, 5, 7), (2, 64)])
def test_every_value_type_and_shape(dtype: DType, form: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    values = np.asarray(np.where(rng.random(shape) < 0.4, rng.integers(-5, 5, shape), 0)).astype(np.int8).astype(dtype.numpy)
    spec = TensorSpec(shape, dtype)
    codec = Sparse(form=form).fit(spec, values)
    assert codec.decode(spec, codec.encode(spec, values)).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("part", "wrong"),
    [("mask", [[0b111, 0b1], [1, 0]]), ("mask", [[0b100, 0b101], [1, 0]]), ("mask", [[0, 0], [0, 0]])],
)
def test_a_mask_that_does_not_match_is_refused(part: str, wrong: list[list[int]]) -> None:
    codec = Sparse(stored=4)
    with pytest.raises(MalformedError) as caught:
        codec.decode(SPEC, {"mask": np.uint8(wrong), "inner.data": np.ones(4, np.float32)})
    assert caught.value.code == "E_PART_VALUES"


@pytest.mark.parametrize("wrong", [[0b101, 0b101, 0b10], [0b100, 0b101, 0], [0b100, 0b101, 0b10000]])
def test_a_stream_that_does_not_match_is_refused(wrong: list[int]) -> None:
    """One mark too many, one too few, and one behind the twentieth value."""
    sound = {"mask": np.uint8([0b100, 0b101, 0b10]), "inner.data": np.ones(4, np.float32)}
    codec = Sparse(form="stream", stored=4)
    assert codec.check_values(SPEC, sound) is None
    with pytest.raises(MalformedError) as caught:
        codec.decode(SPEC, sound | {"mask": np.uint8(wrong)})
    assert caught.value.code == "E_PART_VALUES"
    assert codec.check_values(SPEC, sound | {"mask": np.uint8(wrong)}) == caught.value.message


@pytest.mark.parametrize("wrong", [[1, 1], [5, 2], [0, 20], [0, 2**32 - 1]])
def test_indices_out_of_order_or_range_are_refused(wrong: list[int]) -> None:
    parts = {"indices": np.array(wrong, np.uint32), "inner.data": np.ones(2, np.float32)}
    with pytest.raises(MalformedError):
        Sparse(form="indices", stored=2).decode(SPEC, parts)
    signed = {"indices": np.array([-1, 3], np.int64), "inner.data": np.ones(2, np.float32)}
    with pytest.raises(MalformedError):
        Sparse(form="indices", index="i64", stored=2).decode(SPEC, signed)


def test_the_inner_codec_is_kept_in_full() -> None:
    short = codec_for(CodecSpec("sparse", {"inner": "affine"}))
    assert short.spec.params["inner"] == Affine().spec
    assert codec_for(short.spec) == short == Sparse(CodecSpec("affine", {"group": 64}))


@pytest.mark.parametrize(
    "inner",
    ["nothing", "{", CodecSpec("affine", {"bits": 9}), CodecSpec("sparse", {"inner": 1}), CodecSpec(""), 3, Affine()],
)
def test_an_inner_codec_that_cannot_be(inner: object) -> None:
    with pytest.raises(MalformedError) as caught:
        codec_for(CodecSpec("sparse", {"inner": inner}))  # type: ignore[dict-item]
    assert caught.value.code == "E_CODEC_PARAMS"


def test_few_indices_cannot_ask_for_much_memory() -> None:
    with pytest.raises(UnsupportedError):
        Sparse(form="indices", stored=1).layout(TensorSpec((1 << 40,), DType.F32))
    assert Sparse(form="indices", stored=1 << 20).layout(TensorSpec((1 << 30,), DType.F32))


def test_values_it_was_not_fitted_to_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        Sparse(stored=3).encode(SPEC, VALUES)
    assert caught.value.code == "E_FIT"


def test_a_pruned_model_there_and_back(tmp_path: Path) -> None:
    tensors = {
        name: np.where(np.abs(array) < 0.02, np.zeros((), array.dtype), array) for name, array in llama_tensors().items()
    }
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(tensors))
    flyweight.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", quant="sparse")
    with flyweight.open(tmp_path / "b.safetensors") as made:
        assert "sparse" in {entry.codec.name for entry in made.manifest.entries.values()}
    assert flyweight.verify(tmp_path / "b.safetensors").ok
    assert flyweight.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").identical
