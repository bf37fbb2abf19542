"""Facts cannot be without provenance, and profiles read disputed ones their own way."""

from __future__ import annotations

import pytest

from flyweight.targets.ane.facts.fact import (
    SOURCES,
    Counter,
    Fact,
    Profile,
    Provenance,
    disputed,
    inferred,
    measured,
    seed,
    unknown,
)


def test_a_value_needs_a_provenance_and_a_source() -> None:
    with pytest.raises(ValueError, match="only what is unknown has none"):
        Fact("x", 4, Provenance.UNKNOWN, "guide")
    with pytest.raises(ValueError, match="only what is unknown has none"):
        Fact("x", None, Provenance.SEED, "guide")
    with pytest.raises(ValueError, match="is no source"):
        Fact("x", 4, Provenance.SEED, "")
    with pytest.raises(ValueError, match="is no source"):
        measured(4, "somebody")
    with pytest.raises(ValueError, match="is no source"):
        disputed(4, "guide ch.4", Counter(16, "somebody"))


def test_what_is_disputed_and_nothing_else_has_a_counter_claim() -> None:
    with pytest.raises(ValueError, match="counter-claim"):
        Fact("x", 4, Provenance.DISPUTED, "guide")
    with pytest.raises(ValueError, match="counter-claim"):
        Fact("x", 4, Provenance.SEED, "guide", "", Counter(5, "hwx"))


def test_profiles() -> None:
    fact = disputed(5, "guide ch.25", Counter(7, "hwx", "version 5 is H11"), "M1").named("version")
    assert fact.under(Profile.SEED) is fact
    other = fact.under(Profile.DISPUTED)
    assert (other.value, other.source, other.note, other.provenance) == (7, "hwx", "version 5 is H11", Provenance.DISPUTED)
    assert other.counter == Counter(5, "guide ch.25", "M1")
    assert other.under(Profile.DISPUTED) == fact
    for agreed in (seed(1), measured(1, "hwx"), inferred(1, "guide", "so"), unknown()):
        assert agreed.under(Profile.DISPUTED) is agreed


def test_json() -> None:
    assert disputed(5, "guide ch.25", Counter(7, "hwx")).named("version").as_json() == {
        "about": "version",
        "value": 5,
        "provenance": "disputed",
        "source": "guide ch.25",
        "counter": {"value": 7, "source": "hwx"},
    }
    assert unknown("nobody").as_json() == {"about": "", "value": None, "provenance": "unknown", "source": "", "note": "nobody"}
    assert len(SOURCES) == 7
