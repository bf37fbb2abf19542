"""`gptq`: the error of what a matrix computes falls, step by step, and the parts are such as any reader takes."""

from __future__ import annotations

from weakref import ref

import numpy as np
import pytest

from flyweight.codecs import Codec, codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.codec import CodecSpec
from flyweight.codecs.palette import Palette
from flyweight.codecs.stepped import Stepped
from flyweight.codecs.tabled import Tabled
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.kernels.blocks.fields import FORMS
from flyweight.quantizers import QUANTIZERS

gptq = QUANTIZERS["gptq"]

AFFINE = [
    Affine(4, 64, scale="f16"), Affine(3, 32, "scale_zero"), Affine(2, 96, scale="bf16"), Affine(8, 64, "symmetric", "f16"),
    Affine(4, 0), Affine(5, 48, packing="little", word="u32"), Affine(1, 32),
]  # fmt: skip
STEPPED = [Stepped(2), Stepped(4), Stepped(5, 48)]
TABLED = [Tabled(4, 32), Tabled(2, 64)]
CODECS = [*AFFINE, *STEPPED, *TABLED, *(codec_for(CodecSpec(name)) for name in FORMS)]
EVERY = pytest.mark.parametrize("codec", CODECS, ids=str)


def sample(columns: int = 512, rows: int = 24) -> tuple[np.ndarray, InputStatistics]:
    """Weights, and inputs of which some directions count more than others."""
    rng = np.random.default_rng(columns)
    weights = (rng.standard_normal((rows, columns)) * rng.lognormal(0, 0.3, (rows, 1)) / 10).astype(np.float32)
    inputs = rng.standard_normal((4 * columns, columns // 4)) @ rng.standard_normal((columns // 4, columns))
    inputs = inputs * rng.lognormal(0, 0.5, columns) + 0.3 * rng.standard_normal((4 * columns, columns))
    gram = np.asarray(inputs.T @ inputs / len(inputs), np.float32)
    return weights, InputStatistics(gram.diagonal().copy(), gram, len(inputs))


def loss(codec: Codec, weights: np.ndarray, inputs: InputStatistics, parts: object) -> float:
    error = (weights - codec.decode(TensorSpec(weights.shape, DType.F32), parts)).astype(np.float64)
    return float(np.einsum("ij,jk,ik", error, inputs.gram.astype(np.float64), error))


@EVERY
def test_less_error_than_the_search_for_scales(codec: Codec) -> None:
    weights, inputs = sample()
    spec = TensorSpec(weights.shape, DType.F32)
    parts = gptq(weights, codec, spec, inputs)
    assert {name: (part.shape, part.dtype) for name, part in parts.items()} == {
        name: (part.shape, part.dtype.numpy) for name, part in codec.layout(spec).items()
    }
    assert codec.check_values(spec, parts) is None
    searched = QUANTIZERS[codec.searched_by](weights, codec, spec, inputs)
    # Correlated inputs leave room for at least a quarter; a grid of one bit or a scale for a whole row least of all.
    assert loss(codec, weights, inputs, parts) < 0.75 * loss(codec, weights, inputs, searched)


@EVERY
def test_the_lines_of_parts_are_those_they_decode_by(codec: Codec) -> None:
    weights, _ = sample()
    spec = TensorSpec(weights.shape, DType.F32)
    parts = codec.encode(spec, weights)
    lines = codec.lines(spec, parts)
    codes = np.random.default_rng(0).integers(0, lines.levels.size, weights.shape, dtype=np.uint8)
    again = codec.from_lines(spec, lines, codes)
    by_column = [np.repeat(part, lines.group, axis=0)[: spec.columns].T for part in (lines.scale, lines.bias)]
    expected = by_column[0] * lines.levels[0][codes] + by_column[1]
    got = codec.decode(spec, again)
    # A zero that is stored in place of a bias, or for signed codes, rounds in another order: within an ulp of a term.
    another_order = isinstance(codec, Tabled) or getattr(codec, "form", "") == "scale_zero"
    slack = 2.0**-22 * np.abs(by_column[0]) * lines.levels.size if another_order else 0
    assert (np.abs(got - expected) <= slack).all()


def test_rows_do_not_depend_on_each_other() -> None:
    weights, inputs = sample()
    codec = codec_for(CodecSpec("q4_k"))
    whole = gptq(weights, codec, TensorSpec(weights.shape, DType.F32), inputs)["blocks"]
    some = gptq(weights[5:9], codec, TensorSpec((4, 512), DType.F32), inputs)["blocks"]
    assert np.array_equal(whole[5:9], some)


@pytest.mark.parametrize("columns", [48, 80, 130])
def test_groups_that_are_not_whole(columns: int) -> None:
    weights, inputs = sample(columns, 3)
    codec, spec = Affine(4, 64, scale="f16"), TensorSpec((3, columns), DType.F32)
    assert loss(codec, weights, inputs, gptq(weights, codec, spec, inputs)) < loss(
        codec, weights, inputs, codec.encode(spec, weights)
    )


def test_odd_statistics() -> None:
    """Columns that nothing is multiplied with, no inputs at all, fewer inputs than columns."""
    weights, _ = sample(64, 4)
    codec, spec = Affine(4, 32, scale="f16"), TensorSpec((4, 64), DType.F32)
    rng = np.random.default_rng(0)
    few = rng.standard_normal((3, 64)).astype(np.float32)
    for inputs in (np.zeros((1, 64), np.float32), np.where(np.arange(64) % 2, few, 0), few * 1e-18, few * 1e15):
        gram = np.asarray(inputs.T @ inputs, np.float32)
        parts = gptq(weights, codec, spec, InputStatistics(gram.diagonal().copy(), gram))
        assert codec.check_values(spec, parts) is None
        assert np.abs(codec.decode(spec, parts) - weights).max() < 0.5 * np.abs(weights).max()


def test_what_is_refused() -> None:
    weights, inputs = sample(64, 4)
    spec = TensorSpec((4, 64), DType.F32)
    for given, code in (
        (None, "E_STATISTICS"),
        (InputStatistics(inputs.importance), "E_STATISTICS"),
        (InputStatistics(inputs.importance, inputs.gram[:60, :60]), "E_STATISTICS"),
    ):
        with pytest.raises(UnsupportedError) as refused:
            gptq(weights, Affine(4, 32), spec, given)
        assert refused.value.code == code
    with pytest.raises(UnsupportedError) as refused:
        gptq(weights, Palette(4), spec, inputs)
    assert refused.value.code == "E_QUANTIZER"
    weights[1, 1] = np.nan
    with pytest.raises(UnsupportedError):
        gptq(weights, Affine(4, 32), spec, inputs)


def test_what_is_no_gram_matrix_is_refused() -> None:
    weights, inputs = sample(64, 4)
    spec = TensorSpec((4, 64), DType.F32)
    for gram in (-inputs.gram, np.where(np.eye(64) > 0, np.nan, inputs.gram), np.full((64, 64), np.inf)):
        with pytest.raises(UnsupportedError) as refused:
            gptq(weights, Affine(4, 32), spec, InputStatistics(inputs.importance, np.asarray(gram, np.float32)))
        assert refused.value.code == "E_STATISTICS"


def test_factors_go_with_the_inputs_they_are_of() -> None:
    weights, inputs = sample(64, 4)
    gram = inputs.gram.copy()
    there, kept = ref(gram), InputStatistics(inputs.importance, gram)
    gptq(weights, Affine(4, 32), TensorSpec((4, 64), DType.F32), kept)
    del gram
    assert there() is not None
    del kept
    assert there() is None


def test_empty() -> None:
    codec, spec = Affine(4, 32), TensorSpec((0, 64), DType.F32)
    _, inputs = sample(64, 4)
    assert gptq(np.zeros((0, 64), np.float32), codec, spec, inputs)["codes"].shape == (0, 32)
