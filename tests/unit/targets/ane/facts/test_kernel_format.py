"""The kernel-format enum and its five helper tables."""

from __future__ import annotations

import json

import pytest

from flyweight.targets.ane.facts.fact import Profile, Provenance
from flyweight.targets.ane.facts.kernel_format import (
    KERNEL_FORMAT_RANGE,
    KERNEL_FORMATS,
    PALETTES,
    UNITY,
    palette_format_of,
    scalar_format_of,
)
from support import GOLDEN

TRACED = json.loads((GOLDEN / "ane/measurements.json").read_text())["kernel_formats"]


def test_ranges_follow_from_the_guards() -> None:
    assert list(PALETTES) == [f for f in range(1, 32) if 0 <= f - 7 < 0x15] == list(range(7, 28))
    assert list(UNITY) == [f for f in range(1, 32) if 0 <= f - 0x1C < 3] == [28, 29, 30]
    assert [f for f in KERNEL_FORMATS if f <= (KERNEL_FORMAT_RANGE.value or 0)] == list(range(1, 32))
    assert set(KERNEL_FORMATS) - set(range(1, 32)) == {41}


def test_what_was_traced_is_measured() -> None:
    found = {
        "fp16": scalar_format_of("fp16", Profile.SEED),
        "int8": scalar_format_of("int8", Profile.SEED),
        "lut2": palette_format_of(2, "fp16", Profile.SEED),
        "lut4": palette_format_of(4, "fp16", Profile.SEED),
    }
    assert {name: fact.value for name, fact in found.items()} | {"unity": 30} == TRACED
    assert {fact.provenance for fact in found.values()} == {Provenance.MEASURED}
    assert KERNEL_FORMATS[30].underlying.provenance is Provenance.MEASURED


def test_bit_depths_fill_the_palette_range() -> None:
    depths = [KERNEL_FORMATS[f].bit_depth.value for f in PALETTES]
    assert depths == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [6] * 4 + [8]
    assert [KERNEL_FORMATS[f].bit_depth.value for f in (1, 2, 4, 5, 6, 31)] == [8, 8, 16, 8, 32, 4]
    assert [KERNEL_FORMATS[f].bit_depth.value for f in (3, 28, 29, 30)] == [None] * 4


@pytest.mark.parametrize(("bits", "nbytes"), [(4, 32), (8, 512), (6, 128), (3, 16), (2, 8), (1, 4)])
def test_codebook_bytes(bits: int, nbytes: int) -> None:
    kernel_format = KERNEL_FORMATS[palette_format_of(bits, "fp16", Profile.SEED).value or 0]
    assert kernel_format.lut_bytes(1).value == nbytes
    assert kernel_format.lut_bytes(3).value == 3 * nbytes


def test_only_palettes_have_a_palette_format_and_a_codebook() -> None:
    for value, kernel_format in KERNEL_FORMATS.items():
        assert kernel_format.palette_format.known is kernel_format.lut_bytes(1).known is (value in PALETTES)
    assert [KERNEL_FORMATS[f].palette_format.value for f in (19, 20, 21, 22)] == ["int8", "uint8", "fp16", "e4m3"]


def test_type_numbers_are_given_by_type_alone() -> None:
    numbers = {f: kind.typeno.value for f, kind in KERNEL_FORMATS.items() if kind.typeno.known}
    assert numbers == {1: 2, 2: 3, 4: 5, 5: 16, 6: 6, 31: 23}


def test_e4m3_and_fp32_are_disputed() -> None:
    assert [scalar_format_of("e4m3", profile).value for profile in Profile] == [5, 6]
    assert [scalar_format_of("fp32", profile).value for profile in Profile] == [6, 5]
    fact = scalar_format_of("e4m3", Profile.SEED)
    assert (fact.provenance, fact.counter and fact.counter.value) == (Provenance.DISPUTED, 6)
    assert not palette_format_of(8, "int8", Profile.SEED).known
    assert not KERNEL_FORMATS[3].underlying.known
