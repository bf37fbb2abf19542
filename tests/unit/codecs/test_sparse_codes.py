"""Sparse codes: scales and tables stay where the dense tensor has them; mask, codes and inner parts agree or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs import Codec, codec_for
from flyweight.codecs.blockwise import Blockwise
from flyweight.codecs.palette import Palette
from flyweight.codecs.sparse import Sparse
from flyweight.codecs.sparse_codes import SparseCodes
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.quantizers import QUANTIZERS
from support.importance import weighing


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def pruned(shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = 10.0 ** rng.integers(-2, 2, (shape[0], *(1,) * (len(shape) - 1)))
    return np.where(rng.random(shape) < 0.6, 0, rng.standard_normal(shape) * rows).astype(np.float32)


def encoded(inner: Codec, spec: TensorSpec, values: np.ndarray) -> tuple[Codec, dict[str, np.ndarray]]:
    codec = SparseCodes(inner.spec).fit(spec, values)
    return codec, dict(codec.encode(spec, values))


def test_the_bytes() -> None:
    values = np.float32([[0, 7, -3, 0, 0], [0, 0, 0, 14, 2]])
    codec, parts = encoded(Blockwise("i4", "1"), f32(2, 5), values)
    assert codec.spec.params["stored"] == 4
    assert parts["mask"].tolist() == [0b00000110, 0b11]
    assert parts["inner.codes"].tolist() == [0xD7, 0x17]  # 7 and −3, 7 and 1
    assert parts["inner.scale"].tolist() == [[1.0], [2.0]]
    assert np.array_equal(codec.decode(f32(2, 5), parts), values)


@pytest.mark.parametrize(
    "inner",
    [
        Blockwise("i8", "1"),
        Blockwise("i4", "1x8"),
        Blockwise("u4", "1x8", offset="data"),
        Blockwise("u8", "", offset="data"),
        Blockwise("i4", "2x4", offset="f16"),
        Blockwise("f16", "1", "f16"),
        Blockwise("f32", "1", "f32"),
        Palette(4, group=2),
        Palette(3, group=4, axis=-1),
        Palette(6, vector=2, vector_axis=0),
        Palette(4, table="i8", scale="f16"),
    ],
    ids=lambda codec: str(codec.spec),
)
def test_values_are_those_of_the_inner_codec_or_zero(inner: Codec) -> None:
    spec, values = f32(6, 40), pruned((6, 40))
    codec, parts = encoded(inner, spec, values)
    found, dense = codec.decode(spec, parts), inner.decode(spec, inner.encode(spec, values))
    kept = values != 0
    if isinstance(inner, Palette) and inner.vector == 2:
        kept = (kept[::2] | kept[1::2]).repeat(2, axis=0)
    if not isinstance(inner, Blockwise) or inner.block:  # one scale for all is that of the stored values alone
        assert np.array_equal(found[kept], dense[kept])
    assert not found[~kept].any()
    assert codec.check_values(spec, parts) is None
    assert int(np.bitwise_count(parts["mask"]).sum()) == codec.spec.params["stored"]


def test_one_table_is_spent_on_what_is_stored() -> None:
    """Then the codes are those of `sparse`, whose inner codec sees nothing else."""
    spec, values = f32(8, 64), pruned((8, 64))
    kmeans = QUANTIZERS["kmeans"]
    sparse = Sparse(Palette(4).spec, "stream").fit(spec, values)
    other = kmeans(values, sparse, spec)
    codec = SparseCodes(Palette(4).spec).fit(spec, values)
    parts = kmeans(values, codec, spec, weighing(np.ones(64)))
    assert parts["inner.tables"].shape == (1, 1, 16, 1)
    for name in ("mask", "inner.indices", "inner.tables"):
        assert parts[name].tobytes() == other[name].tobytes()
    assert np.array_equal(codec.decode(spec, parts), sparse.decode(spec, other))


def test_vectors_of_a_single_element_are_encoded_whole() -> None:
    """A vector axis of one: codes are as many as values, but a run of stored values would be taken for vectors."""
    spec, values = f32(5, 1), pruned((5, 1), 3)
    with pytest.raises(UnsupportedError):
        encoded(Palette(4, vector=2), f32(5, 3), pruned((5, 3)))
    codec, parts = encoded(Palette(4, vector=2), spec, values)
    assert np.allclose(codec.decode(spec, parts), values, rtol=0.5)


@pytest.mark.parametrize(
    ("part", "wrong", "complaint"),
    [
        ("mask", [0b00000111, 0b11], "the mask does not mark 4 values"),
        ("mask", [0b00000100, 0b11], "the mask does not mark 4 values"),
        ("mask", [0b00000110, 0b101], "the mask marks values behind the end of a row"),
        ("inner.codes", [0xD7, 0x17, 0x10], "the bits after the last code are not zero"),
    ],
)
def test_parts_that_do_not_agree_are_refused(part: str, wrong: list[int], complaint: str) -> None:
    values = np.float32([[0, 7, -3, 0, 0], [0, 0, 0, 14, 2]])
    if part == "inner.codes":
        values[0, 0] = 1
    codec, parts = encoded(Blockwise("i4", "1"), f32(2, 5), values)
    parts[part] = np.uint8(wrong)
    with pytest.raises(MalformedError) as caught:
        codec.decode(f32(2, 5), parts)
    assert caught.value.code == "E_PART_VALUES"
    assert codec.check_values(f32(2, 5), parts) == caught.value.message == complaint


def test_what_the_inner_codec_complains_about() -> None:
    codec, parts = encoded(Blockwise("i8", "1"), f32(4, 8), pruned((4, 8)))
    parts["inner.scale"] = np.full_like(parts["inner.scale"], np.nan)
    assert codec.check_values(f32(4, 8), parts) == "part 'scale' has NaN or infinite values"


@pytest.mark.parametrize("inner", ["raw", "affine", "lossless", "q4_0"])
def test_codecs_without_a_stream_of_codes_are_refused(inner: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        SparseCodes(CodecSpec(inner)).layout(f32(2, 64))
    assert caught.value.code == "E_SPEC"


def test_counts_that_cannot_be() -> None:
    with pytest.raises(UnsupportedError):
        SparseCodes(Blockwise().spec, stored=129).layout(f32(2, 64))
    with pytest.raises(MalformedError):
        codec_for(CodecSpec("sparse_codes", {"inner": Blockwise().spec, "stored": -1}))
    with pytest.raises(UnsupportedError) as caught:
        SparseCodes(Blockwise().spec, stored=3).encode(f32(2, 64), pruned((2, 64)))
    assert caught.value.code == "E_FIT"
