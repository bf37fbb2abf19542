"""`gptq`: the error of what a matrix computes falls, step by step, and the parts are such as any reader takes."""

from __future__ import annotations

from weakref import ref

import numpy as np
import pytest

from flyweight.codecs import Codec, codec_for
from flyweight.codecs.affine import Affine
from flyweight.codecs.blockwise import Blockwise
from flyweight.codecs.codec import CodecSpec
from flyweight.codecs.floats import Mxfp4Split
from flyweight.codecs.hqq import Hqq
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
WIDE = [Affine(4, 0), Affine(8, 0, "symmetric", "f16"), Affine(4, 512), Affine(3, 320)]
MICROSCALED = [codec_for(CodecSpec("mxfp4")), Mxfp4Split()]
BLOCKWISE = [
    Blockwise("i8"), Blockwise("i4", "1x32"), Blockwise("i4", "1x64", "f32", "data"), Blockwise("u4", "1x32", "f16", "f16"),
    Blockwise("u8", "1", "f16", "data"), Blockwise("u4", "1x0", "f32", "f32"),
]  # fmt: skip
HQQ = [Hqq(4, 8), Hqq(4, 64, axis=1), Hqq(8, 24, "f16"), Hqq(2, 32, "bf16", axis=1), Hqq(3, 8)]
ON_LINES = [
    *AFFINE, *STEPPED, *TABLED, *MICROSCALED, *BLOCKWISE, *HQQ, *(codec_for(CodecSpec(name)) for name in FORMS)
]  # fmt: skip
PALETTES = [Palette(4), Palette(2, 8), Palette(3, 1, table="f32"), Palette(6, table="i8", scale="f16"), Palette(8, 12)]
EVERY = pytest.mark.parametrize("codec", [*ON_LINES, *WIDE, *PALETTES], ids=str)


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


@pytest.mark.parametrize("codec", ON_LINES, ids=str)
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
    another_order = isinstance(codec, Tabled | Blockwise | Hqq) or getattr(codec, "form", "") == "scale_zero"
    slack = 2.0**-22 * np.abs(by_column[0]) * lines.levels.size if another_order else 0
    if (
        isinstance(codec, Blockwise) and codec.scale == "f16"
    ):  # values are rounded to the type of the scale, and so are codes less offsets
        slack = slack + np.maximum((2.0**-10 + 2.0**-22) * np.abs(expected), 2.0**-25)
    assert (np.abs(got - expected) <= slack).all()


def test_rows_do_not_depend_on_each_other() -> None:
    weights, inputs = sample()
    codec = codec_for(CodecSpec("q4_k"))
    whole = gptq(weights, codec, TensorSpec(weights.shape, DType.F32), inputs)["blocks"]
    some = gptq(weights[5:9], codec, TensorSpec((4, 512), DType.F32), inputs)["blocks"]
    assert np.array_equal(whole[5:9], some)


def test_rows_of_another_palette_do_not_matter() -> None:
    weights, inputs = sample()
    codec = Palette(3, 8)
    whole = gptq(weights, codec, TensorSpec((24, 512), DType.F32), inputs)
    some = gptq(weights[8:16], codec, TensorSpec((8, 512), DType.F32), inputs)
    assert np.array_equal(whole["tables"][1:2], some["tables"])
    own = codec.stored_codes(TensorSpec((8, 512), DType.F32))
    assert own is not None
    nbytes = 8 * 512 * own.bits // 8
    assert np.array_equal(whole["indices"][nbytes : 2 * nbytes], some["indices"])


@pytest.mark.parametrize("columns", [600, 1100])
def test_wide_rows_of_one_group(columns: int) -> None:
    """Worked on in pieces, as one group, to less than half of the error of the search."""
    weights, inputs = sample(columns, 5)
    spec = TensorSpec((5, columns), DType.F32)
    for codec in (Affine(4, 0), Blockwise("i4")):
        searched = QUANTIZERS[codec.searched_by](weights, codec, spec, inputs)
        parts = gptq(weights, codec, spec, inputs)
        assert parts["scale"].size == 5
        assert loss(codec, weights, inputs, parts) < 0.6 * loss(codec, weights, inputs, searched)


def test_rows_of_hqq_share_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are worked on at a time are whole groups, wherever they are in the matrix."""
    weights = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    _, inputs = sample(64, 4)
    codec, spec = Hqq(4, 8), TensorSpec((48, 64), DType.F32)
    lost = [loss(codec, weights, inputs, gptq(weights, codec, spec, inputs))]
    monkeypatch.setattr("flyweight.quantizers.gptq._WEIGHTS_AT_ONCE", 16 * 64)
    lost.append(loss(codec, weights, inputs, gptq(weights, codec, spec, inputs)))
    searched = QUANTIZERS["hqq"](weights, codec, spec, inputs)
    assert lost[1] != lost[0]  # the search ends by the mean over what it has
    assert max(lost) < 0.75 * loss(codec, weights, inputs, searched)


def test_importance_chooses_exponents() -> None:
    """Where the greatest magnitude of a block does not matter, the exponent is one for the others."""
    values = np.full((1, 32), 0.75, np.float32)
    values[0, 5] = 4
    importance = np.where(np.arange(32) == 5, 1e-4, 1).astype(np.float32)
    spec = TensorSpec((1, 32), DType.F32)
    for codec, part, at in ((codec_for(CodecSpec("mxfp4")), "blocks", (0, 0)), (Mxfp4Split(), "scale", (0, 0))):
        alike = codec.encode(spec, values)
        assert np.array_equal(codec.encode_weighted(spec, values, None)[part], alike[part])
        weighed = codec.encode_weighted(spec, values, importance)
        error = [np.abs(codec.decode(spec, parts) - values)[0] for parts in (alike, weighed)]
        assert weighed[part][at] == alike[part][at] - 1
        assert np.delete(error[1], 5).max() < np.delete(error[0], 5).max()


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
    not_of_rows = [Palette(4, vector=2), Palette(4, 8, axis=1), Blockwise("i8", ""), Blockwise("i8", "2x32"), Hqq(4, 8)]
    not_of_rows += [Blockwise("f16"), Hqq(4, 128, axis=1), Affine(4, 4, axis=0), Tabled(4, 0), codec_for(CodecSpec("q8_1"))]
    for codec in not_of_rows:
        with pytest.raises(UnsupportedError) as refused:
            gptq(weights, codec, spec, inputs)
        assert refused.value.code == "E_QUANTIZER", codec
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
