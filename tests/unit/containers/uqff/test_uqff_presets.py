"""The names of quantizations, and what they make of tensors that need another."""

from __future__ import annotations

import pytest

from flyweight.containers.uqff.uqff_presets import CODECS, NARROWER, PROMOTED, fallback, name_of, preset, target
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import TensorSpec


def entry(quant: str, columns: int = 256) -> Entry:
    return Entry("x", TensorSpec((2, columns), DType.F32), CODECS[quant], {})


@pytest.mark.parametrize("quant", CODECS)
def test_a_model_is_named_by_most_of_its_layers(quant: str) -> None:
    layers = {f"model.layers.{n}.mlp.up_proj": entry(quant) for n in range(3)}
    assert name_of(layers) == quant
    promoted = layers | {"lm_head": entry(target(quant, "lm_head", promotes=True))}
    assert name_of(promoted) == quant


@pytest.mark.parametrize(("quant", "narrower"), NARROWER.items())
def test_rows_that_are_no_whole_blocks(quant: str, narrower: str) -> None:
    assert fallback(quant, 256) is None
    assert fallback(quant, 32) == narrower
    assert fallback(quant, 31) is None
    assert name_of({"a": entry(quant), "b": entry(quant), "c": entry(narrower, 32)}) == quant


def test_what_is_sensitive_gets_more_bits() -> None:
    assert {target(quant, "lm_head", promotes=True) for quant in ("q2k", "q4k", "q4_0")} == {"q6k"}
    assert target("afq4", "model.embed_tokens", promotes=True) == "afq6"
    assert target("hqq4", "lm_head", promotes=True) == "hqq4"
    assert target("q4k", "lm_head", promotes=False) == "q4k"
    assert target("q4k", "model.layers.0.mlp.up_proj", promotes=True) == "q4k"
    assert set(PROMOTED) | set(PROMOTED.values()) <= set(CODECS)


@pytest.mark.parametrize(("text", "quant"), [("q4_k", "q4k"), ("Q4K", "q4k"), ("4", "q4k"), ("8", "q8_0"), ("AFQ4", "afq4")])
def test_other_spellings(text: str, quant: str) -> None:
    assert preset(text, promotes=True) == preset(quant, promotes=True) is not None


def test_a_name_that_is_none() -> None:
    assert preset("q9k", promotes=True) is None
    assert name_of({}) == "dense"
