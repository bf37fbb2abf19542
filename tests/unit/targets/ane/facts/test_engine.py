"""Every fact of every target has its source, and what the sources do not give has no value."""

from __future__ import annotations

import pytest

from flyweight.targets.ane.facts import codegen, hal, rates
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.engine_targets import CLOCK, TARGETS, Generation, PerTarget
from flyweight.targets.ane.facts.fact import SOURCES, Profile, Provenance

ENGINES = [Engine(target, profile) for target in TARGETS.values() for profile in Profile]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_facts_say_what_they_are_about_and_who_says_so(engine: Engine) -> None:
    facts = list(engine.facts())
    assert len({fact.about for fact in facts}) == len(facts)
    for fact in facts:
        assert fact.about
        if fact.provenance is Provenance.UNKNOWN:
            assert (fact.value, fact.source) == (None, "")
        else:
            assert fact.value is not None
            assert fact.source.partition(" ch.")[0] in SOURCES
        assert fact.note or fact.provenance is not Provenance.INFERRED, "an inference says from what"


def known(table: PerTarget[object]) -> set[str]:
    return {name for name, target in TARGETS.items() if table.of(target).known}


def of(*generations: Generation) -> set[str]:
    return {name for name, target in TARGETS.items() if target.generation in generations}


G = Generation
LATER = of(G.A13, G.A14, G.A15, G.A16, G.A17, G.A18)
EVERYWHERE = set(TARGETS)

GIVEN: list[tuple[PerTarget[object], set[str]]] = [
    (hal.GATES[0x48F], LATER | of(G.PRE_A13)),
    (hal.GATES[0x529], LATER),
    *((hal.GATES[byte], LATER) for byte in (*hal.INT8_GROUP, *hal.BLOCKWISE_GROUP)),
    (hal.GATES[0x52D], EVERYWHERE),
    (hal.GATES[0x52C], set()),
    (hal.GATES[0x52E], set()),
    (hal.GATES[0x685], set()),
    (hal.GATES[0x680], of(G.A13)),
    (hal.GATES[0x288], EVERYWHERE),
    (hal.GATES[0x48B], EVERYWHERE),
    (hal.LIMITS[0x200], EVERYWHERE),
    (hal.LIMITS[0x210], of(G.A13, G.A17, G.A18) | {"H16g"}),
    (hal.ACTIVATION_LUT_BYTES, LATER | of(G.PRE_A13)),
    (hal.PALETTE_LUT_BYTES, set()),
    *((table, LATER) for table in codegen.CAPABILITIES.values()),
    (codegen.FP8_ENCODER, LATER),
    (codegen.PALETTE_WIDTHS[1], LATER),
    (codegen.PALETTE_WIDTHS[3], of(G.A13, G.A17, G.A18)),
    (codegen.PALETTE_WIDTHS[4], LATER | of(G.PRE_A13)),
    (rates.COMPUTE, {"H13", "H14", "H17"}),
    (rates.DISPATCH, {"H13", "H14", "H17"}),
    (rates.FITTED_BANDWIDTH, {"H13", "H14", "H17"}),
    (rates.WEIGHT_STREAM, {"H13", "H14", "H16", "H17", "H18"}),
    (rates.DENSE_STREAM, {"H13"}),
    (CLOCK, {"H11", "H13", "H13g", "T1", "H14", "H15", "H15c", "H16", "H16s", "H17", "H17s", "H17c", "H17d", "M11"}),
]  # fmt: skip


@pytest.mark.parametrize(("table", "targets"), GIVEN, ids=[table.title for table, _ in GIVEN])
def test_what_no_source_gives_has_no_value(table: PerTarget[object], targets: set[str]) -> None:
    assert known(table) == targets


def test_the_m1_as_the_guide_has_it() -> None:
    m1 = Engine(TARGETS["H13"])
    assert m1.gate(hal.STREAMING_MASTER).value is m1.gate(hal.KERNEL_STRIDE).value is True
    assert not any(m1.gate(byte).value for byte in (*hal.INT8_GROUP, *hal.BLOCKWISE_GROUP, hal.FP8))
    assert m1.limit(hal.DENSE_CAP).value == 64 << 10
    assert m1.limit(hal.STREAMED_CAP).value == 16 << 20
    matrix = {name: m1.read(table).value for name, table in codegen.CAPABILITIES.items()}
    assert matrix == {
        "sparse index plane": False, "several codebooks": False, "zero points": False, "zero-skip": True, "vectors": True,
    }  # fmt: skip
    assert {bits for bits, table in codegen.PALETTE_WIDTHS.items() if m1.read(table).value} == {4, 8}
    assert (m1.engines.value, m1.read(hal.ACTIVATION_LUT_BYTES).value) == (4, 86)


def test_the_m5_has_the_later_descriptor() -> None:
    m5 = Engine(TARGETS["H17"])
    assert all(m5.read(table).value for table in codegen.CAPABILITIES.values())
    assert {bits for bits, table in codegen.PALETTE_WIDTHS.items() if m5.read(table).value} == {3, 4, 6, 8}


def test_vector_sizes_follow_from_the_mask() -> None:
    assert codegen.VECTOR_SIZES.value == (1, 2, 4, 5) == tuple(v for v in range(8) if 1 << v & 0x36)
    assert codegen.VECTOR_SIZES.under(Profile.DISPUTED).value == (1, 2, 4)


def test_where_the_profiles_differ_on_the_m1() -> None:
    seed, disputed = ({fact.about: fact.value for fact in Engine(TARGETS["H13"], profile).facts()} for profile in Profile)
    assert {about for about in seed if seed[about] != disputed[about]} == {
        "engines (0x238) of H13",
        "table-descriptor version of H13",
        "0x00c of H13",
        "Winograd enable (0x680) of H13",
        "sparse index plane of palettes of H13",
        "zero-skip in the multiply array of H13",
        "palettes of vectors of H13",
        "2-bit palettes of H13",
        "6-bit palettes of H13",
        "blockwise weights of H13",
        "legal vector sizes",
        "4-bit scalar weights",
        "accumulator",
    }
