"""The smaller level of lossless coding: every bit comes back, in little more than the entropy of the upper byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.codecs.entropy_coded import CHUNK, frequencies_of
from flyweight.codecs.lossless_small import LosslessSmall
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.tensor import TensorSpec
from support.toys import write_toy_llama

FLOATS = [DType.BF16, DType.F16, DType.F32]


def coded(values: np.ndarray, dtype: DType) -> tuple[LosslessSmall, TensorSpec, dict[str, np.ndarray]]:
    spec = TensorSpec(values.shape, dtype)
    codec = LosslessSmall().fit(spec, values)
    assert isinstance(codec, LosslessSmall)
    parts = dict(codec.encode(spec, values))
    assert codec.decode(spec, parts).tobytes() == values.tobytes()
    return codec, spec, parts


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_every_word_there_is(dtype: DType) -> None:
    """NaN payloads, both zeros, infinities, subnormals: all 65,536 words at once, in an order that mixes them."""
    words = np.random.default_rng(1).permutation(1 << 16).astype(np.uint16).reshape(64, 1024)
    coded(words.view(dtype.numpy), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0), (1,), (31,), (32,), (33,), (5, 7, 3), (CHUNK - 1,), (CHUNK,), (2, CHUNK + 5)]
)
def test_any_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    coded(np.asarray(np.random.default_rng(2).standard_normal(shape)).astype(dtype.numpy), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_size_is_the_entropy_of_the_upper_byte(dtype: DType) -> None:
    """Beside it: 32 states and an end a chunk, the table, and what frequencies of 12 bits lose.

    A frequency is off by less than one slot of 4096, and one of f slots then costs its symbol log2(1 + 1/f) bits more at most,
    so over all symbols the loss is below Σ p · 1/(f ln 2) ≈ (symbols that occur) / (4096 ln 2) bits a value.
    """
    values = (np.random.default_rng(3).standard_normal((512, 1024)) * 0.02).astype(dtype.numpy)
    codec, spec, _ = coded(values, dtype)
    words = values.reshape(-1).view(f"u{dtype.bits // 8}").astype(np.uint64)
    counts = np.bincount((words >> (dtype.bits - 9) & 0xFF).astype(np.int64), minlength=256)
    present = counts[counts > 0]
    entropy = float((present * np.log2(spec.size / present)).sum())
    chunks = -(-spec.size // CHUNK)
    bound = entropy + spec.size * len(present) / (4096 * np.log(2)) + chunks * (32 * 32 + 64) + 256 * 16
    rest = spec.size * (dtype.bits - 8)
    found = 8 * sum(part.nbytes for part in codec.layout(spec).values())
    assert entropy + rest < found <= bound + rest


def test_frequencies_fill_the_slots() -> None:
    rng = np.random.default_rng(4)
    counts = np.concatenate([rng.integers(0, 2, (3, 256)), rng.integers(0, 10**9, (3, 256)), np.zeros((1, 256), np.int64)])
    counts = np.concatenate([counts, np.eye(2, 256, dtype=np.int64), [[10**12] + [1] * 255]])
    found = frequencies_of(counts)
    assert (found.sum(1, dtype=np.int64) == 4096).all()
    assert (found[counts > 0] > 0).all()
    assert (found[:-1][(counts[:-1] == 0) & counts[:-1].any(1, keepdims=True)] == 0).all()


@pytest.mark.parametrize("part", ["frequencies", "states", "ends", "words"])
def test_parts_that_do_not_agree_are_refused(part: str) -> None:
    """A chunk ends with every state at its beginning and every word taken: other words, states or tables do not."""
    values = np.random.default_rng(5).standard_normal((300, 1000)).astype(DType.BF16.numpy)
    codec, spec, parts = coded(values, DType.BF16)
    for at in (0, parts[part].size // 2, parts[part].size - 1):
        broken = parts[part].copy()
        broken.reshape(-1)[at] ^= 1
        with pytest.raises(MalformedError) as caught:
            codec.decode(spec, parts | {part: broken})
        assert caught.value.code == "E_PART_VALUES"
    assert codec.check_values(spec, parts) is None
    assert codec.check_values(spec, parts | {part: parts[part] * 0}) is not None


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_is_complained_about(odd: float) -> None:
    values = np.ones((8, 64), np.float32)
    values[3, 5] = odd
    codec, spec, parts = coded(values, DType.F32)
    assert codec.check_values(spec, parts) is not None


def test_other_values_are_refused() -> None:
    values = np.random.default_rng(6).standard_normal((64, 64)).astype(np.float32)
    codec, spec, _ = coded(values, DType.F32)
    with pytest.raises(UnsupportedError, match="other values"):
        codec.encode(spec, np.exp2(np.random.default_rng(7).integers(-90, 90, (64, 64))).astype(np.float32))
    with pytest.raises(UnsupportedError, match="stores bf16"):
        LosslessSmall().layout(TensorSpec((4,), DType.I8))


def test_a_model_there_and_back(tmp_path: Path) -> None:
    toy = write_toy_llama(tmp_path / "toy")
    made = flyweight.convert(toy, tmp_path / "small", to="hf", quant="lossless-small")
    dense = [tensor for tensor in made.tensors if not tensor.codec.startswith("lossless_small")]
    assert len(dense) > 2
    assert [note for note in made.notes if "would not make it smaller" in note] == [
        f"{dense[0].name} and {len(dense) - 1} more: not quantized: lossless_small would not make it smaller"
    ], "said once for all of them"
    assert flyweight.diff(toy, tmp_path / "small").identical
