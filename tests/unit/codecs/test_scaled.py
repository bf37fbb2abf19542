"""Scaled values: the bytes, values by the formula, one rounding, slabs that end within a block, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from flyweight.codecs import Codec, codec_for
from flyweight.codecs.blockwise import Blockwise
from flyweight.codecs.palette import Palette
from flyweight.codecs.raw import Raw
from flyweight.codecs.scaled import Scaled
from flyweight.codecs.sparse import Sparse
from flyweight.codecs.sparse_codes import SparseCodes
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, TensorSpec, has_rows
from flyweight.quantizers import QUANTIZERS
from support.importance import weighing

TYPES = {"f16": np.float16, "f32": np.float32}


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.F32)


def weights(shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 2, (shape[0], *(1,) * (len(shape) - 1)))
    values[rng.random(shape) < 0.2] = 0
    return values.astype(np.float32)


INNER = [
    Palette(4),
    Palette(3, table="f32"),
    Palette(6, group=2, vector=2),
    Blockwise("i8", "1"),
    SparseCodes(Palette(4).spec),
    Sparse(form="stream"),
    Raw(),
]


@pytest.mark.parametrize("inner", INNER, ids=lambda codec: codec.name)
@pytest.mark.parametrize("block", ["", "1", "0x1", "1x4", "2x8"])
@pytest.mark.parametrize("scale", TYPES)
def test_values_are_those_of_the_formula(inner: Codec, block: str, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.codecs.scaled._SLAB", 56)
    spec, values = f32(4, 16), weights((4, 16))
    codec = Scaled(inner.spec, block, scale).fit(spec, values)
    assert isinstance(codec, Scaled)
    parts = dict(codec.encode(spec, values))
    under = codec.inner_codec.decode(codec.inner_spec(spec), codec.inner_parts(parts)).astype(TYPES[scale])
    lengths = [axis // count for axis, count in zip(spec.shape, parts["scale"].shape, strict=True)]
    scales = np.kron(parts["scale"].astype(np.float32), np.ones(lengths, np.float32))
    expected = (scales * under.astype(np.float32)).astype(TYPES[scale]).astype(np.float32)
    found = codec.decode(spec, parts)
    assert np.array_equal(found, expected)
    assert np.array_equal(np.concatenate([*codec.decoded_runs(spec, parts)]), found.reshape(-1))
    assert codec.check_values(spec, parts) is None
    assert np.abs(parts["scale"]).max() == np.abs(values).max().astype(TYPES[scale])


def test_the_bytes() -> None:
    values = np.float32([[4, -2, 0, 1], [0.5, 0.25, -0.5, 0]])
    parts = Scaled(Palette(2, table="f16").spec).encode(f32(2, 4), values)
    assert parts["scale"].tolist() == [[4.0], [0.5]]
    assert parts["inner.tables"].shape == (1, 1, 4, 1)
    assert list(parts) == ["scale", "inner.indices", "inner.tables"]


def test_a_scale_per_channel_makes_a_palette_better() -> None:
    """Rows of very different magnitude share a table only if they are scaled."""
    spec, values = f32(32, 64), weights((32, 64))
    plain, scaled = Palette(4), Scaled(Palette(4).spec)
    kmeans = QUANTIZERS["kmeans"]
    assert scaled.quantizer == "kmeans"

    def error(codec: Codec) -> float:
        """Relative to its row, of the worst row."""
        off = codec.decode(spec, kmeans(values, codec, spec, weighing(np.ones(64)))) - values
        return float((np.square(off).sum(axis=1) / np.square(values).sum(axis=1)).max())

    assert error(scaled) < error(plain) / 10


def test_rows_can_be_cut_where_those_of_the_inner_codec_can() -> None:
    assert has_rows(f32(4, 64), Scaled(Blockwise("i8", "1").spec, "1x32").layout(f32(4, 64)))
    assert not has_rows(f32(4, 64), Scaled(Palette(4).spec).layout(f32(4, 64)))


def test_what_is_refused() -> None:
    for params in ({"scale": "bf16"}, {"block": "1x"}, {"inner": CodecSpec("nothing")}):
        with pytest.raises(MalformedError) as malformed:
            codec_for(CodecSpec("scaled", params))
        assert malformed.value.code == "E_CODEC_PARAMS"
    with pytest.raises(UnsupportedError) as caught:
        Scaled(Palette(4).spec, "3").layout(f32(4, 16))
    assert caught.value.code == "E_SPEC"
    with pytest.raises(UnsupportedError) as caught:
        Scaled(Palette(4).spec).encode(f32(2, 4), np.full((2, 4), 1e6))
    assert caught.value.code == "E_RANGE"


def test_values_that_mean_nothing_are_complained_about() -> None:
    codec, spec = Scaled(Palette(4).spec), f32(4, 16)
    sound = dict(codec.encode(spec, weights((4, 16))))
    wrong = {
        "part 'scale' has NaN or infinite values": {"scale": np.full((4, 1), np.nan, np.float16)},
        "part 'tables' has NaN or infinite values": {"inner.tables": np.full((1, 1, 16, 1), np.inf, np.float16)},
        "a value times its scale is infinite": {
            "scale": np.full((4, 1), 60000, np.float16),
            "inner.tables": np.full((1, 1, 16, 1), 2, np.float16),
        },
    }
    for complaint, parts in wrong.items():
        assert codec.check_values(spec, sound | parts) == complaint
    sparse = Scaled(SparseCodes(Palette(4).spec).spec).fit(spec, weights((4, 16)))
    parts = dict(sparse.encode(spec, weights((4, 16))))
    parts["inner.mask"] = np.zeros_like(parts["inner.mask"])
    assert "does not mark" in str(sparse.check_values(spec, parts))
