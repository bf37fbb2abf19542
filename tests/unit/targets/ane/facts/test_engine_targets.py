"""The 28 targets, and the names they go by."""

from __future__ import annotations

import pytest

from flyweight.foundation.errors import ArgumentError
from flyweight.targets.ane.facts.engine_targets import (
    CPU_SUBTYPE,
    DESCRIPTOR_VERSION,
    ENGINES,
    M_CHIPS,
    PRODUCTS,
    TARGETS,
    Generation,
    products_of,
    target_named,
)
from flyweight.targets.ane.facts.fact import Profile


def test_there_are_28() -> None:
    assert len(TARGETS) == 28
    by_generation = {g: sum(target.generation is g for target in TARGETS.values()) for g in Generation}
    assert list(by_generation.values()) == [4, 3, 3, 3, 4, 6, 1, 1, 3]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("M1", "H13"), ("m1", "H13"), (" m1 max", "H13g"), ("M1-Pro", "H13g"), ("m2", "H14"), ("M3", "H15"), ("M4", "H16"),
        ("M5", "H17"), ("M5 Pro", "H17s"), ("h17S", "H17s"), ("H13", "H13"), ("M9", "M9"), ("M11", "M11"), ("a13", "H13"),
        ("A18", "H18"), ("U2", "U2"),
    ],
)  # fmt: skip
def test_names(name: str, target: str) -> None:
    assert target_named(name).name == target


def test_every_name_finds_its_target() -> None:
    assert all(target_named(name) is target for name, target in TARGETS.items())
    assert all(target_named(product).name == fact.value for product, fact in PRODUCTS.items())
    assert [target_named(chip).name for chip in M_CHIPS] == ["H13", "H14", "H15", "H16", "H17"]  # M(n) is H(n + 12)


@pytest.mark.parametrize("name", ["H19", "M6", "M10", "", "A12", "H13x", "GPU"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        target_named(name)
    assert refused.value.code == "E_TARGET"
    assert "H13g" in str(refused.value)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ArgumentError, match="did you mean m1ultra"):
        target_named("M1 ultr")


def test_products() -> None:
    assert products_of(TARGETS["H13g"]) == ("M1 Pro", "M1 Max", "M1 Ultra")
    assert products_of(TARGETS["U1"]) == ()


def test_engines() -> None:
    counts = {name: ENGINES.of(target).value for name, target in TARGETS.items()}
    assert [counts[name] for name in ("H13", "H13g", "H14c", "H16s", "H17d", "H18", "M11", "M9")] == [4, 8, 32, 16, 64, 4, 1, 1]
    assert counts["H12"] is counts["T0"] is None
    other = {name: ENGINES.of(target).under(Profile.DISPUTED).value for name, target in TARGETS.items()}
    assert ENGINES.of(TARGETS["H17s"]).counter is None, "both say 16"
    assert {other[name] for name in TARGETS if name.startswith(("H13", "H14", "H15", "H16", "H17", "H18"))} == {16}
    assert (other["H11"], other["M9"], other["U1"]) == (8, 2, 4)


def test_versions() -> None:
    version = DESCRIPTOR_VERSION.of(TARGETS["H13"])
    assert (version.value, version.under(Profile.DISPUTED).value) == (5, 7)
    assert [DESCRIPTOR_VERSION.of(TARGETS[name]).value for name in ("H11", "H12", "H14", "H15", "H16", "H17", "H18")] == [
        5, 6, 11, 8, 17, 19, 20,
    ]  # fmt: skip
    assert [CPU_SUBTYPE.of(TARGETS[name]).value for name in ("H11", "H12", "T0", "M9", "H13", "H17", "M11", "U1")] == [
        1, 3, 2, None, 4, 9, 8, None,
    ]  # fmt: skip
