"""KernelCfg and KernelDMA: the words that were seen, the fields, and what has no meaning."""

from __future__ import annotations

import pytest

from flyweight.foundation.errors import ArgumentError, UnsupportedError
from flyweight.targets.ane.facts.fact import Provenance
from flyweight.targets.ane.records.kernel_config import (
    DMA_H18G,
    H13,
    H16,
    H18G,
    KernelConfig,
    KernelDma,
    RegisterLayout,
    kernel_config,
    word_fact,
)

SEEN = {
    "dense fp16": ({"element": "fp16"}, 0x10000082),
    "sparse fp16": ({"element": "fp16", "sparse": True}, 0x182),
    "int8": ({"element": "int8"}, 0x10000081),
    "4-bit palette": ({"element": "fp16", "palette_bits": 4}, 0x10000046),
}
"""Words of programs that were compiled for h18g: the M6 study's notes on the format, section 12."""


@pytest.mark.parametrize("case", SEEN)
def test_words_that_were_seen(case: str) -> None:
    form, word = SEEN[case]
    config = kernel_config(**form)  # type: ignore[arg-type]
    assert config.word(H18G) == word
    assert KernelConfig.from_word(word, H18G) == config
    assert word_fact(config, H18G).provenance is Provenance.MEASURED


@pytest.mark.parametrize("layout", [H13, H16], ids=["H13", "H16"])
@pytest.mark.parametrize("case", SEEN)
def test_before_h17_the_same_without_detect_zeros(case: str, layout: RegisterLayout) -> None:
    form, word = SEEN[case]
    config = kernel_config(**form, layout=layout)  # type: ignore[arg-type]
    assert config.word(layout) == word & 0xFFF
    assert word_fact(config, layout).provenance is Provenance.INFERRED


def test_what_was_not_seen_is_inferred() -> None:
    fact = word_fact(kernel_config("fp16", palette_bits=8), H18G)
    assert (fact.value, fact.provenance) == (0x10000086, Provenance.INFERRED)


@pytest.mark.parametrize(("sparse", "word"), [(0, 0x10040), (1, 0x10060)])
def test_dma_words_that_were_seen(sparse: int, word: int) -> None:
    assert KernelDma(sparse=sparse).word() == word
    assert KernelDma.from_word(word) == KernelDma(sparse=sparse)


@pytest.mark.parametrize("layout", [H13, H16, H18G, DMA_H18G], ids=lambda layout: layout.title)
def test_fields_do_not_overlap(layout: RegisterLayout) -> None:
    masks = [field.mask for field in layout.fields.values()]
    union = 0
    for mask in masks:
        assert not union & mask
        union |= mask
    assert union < 1 << 32


def test_every_value_of_every_field_comes_back() -> None:
    for name, field in H18G.fields.items():
        for value in range(1 << field.bits):
            config = KernelConfig(**{"format": 0, name: value})  # type: ignore[arg-type]
            assert KernelConfig.from_word(config.word(H18G), H18G) == config


def test_what_a_register_cannot_say_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no field asymmetric"):
        KernelConfig(1, asymmetric=1).word(H13)
    with pytest.raises(UnsupportedError, match="does not fit"):
        KernelConfig(4).word(H18G)
    with pytest.raises(UnsupportedError, match="kernel format"):
        kernel_config("int4")


@pytest.mark.parametrize(("word", "layout"), [(1 << 3, H18G), (1 << 31, H18G), (1 << 28, H16), (1 << 15, H13), (1, DMA_H18G)])
def test_bits_without_a_meaning_are_refused(word: int, layout: RegisterLayout) -> None:
    with pytest.raises(UnsupportedError, match="no known meaning"):
        layout.unpack(word)


@pytest.mark.parametrize("word", [-1, 1 << 32])
def test_words_have_32_bits(word: int) -> None:
    with pytest.raises(ArgumentError):
        H18G.unpack(word)
