"""Pictures of plans: bars to scale, names escaped, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from flyweight.targets.ane.gates import Outcome
from flyweight.targets.ane.plan_picture import COLOURS, html, svg
from flyweight.targets.ane.weight_plan import Plan, plan_weights
from support.engine_weights import engine, use_of

SVG = "{http://www.w3.org/2000/svg}"


def plan() -> Plan:
    uses = [replace(use_of("lut4"), name=f"layers.{i}.up") for i in range(3)]
    hostile = replace(use_of("int8"), name='<script>alert("x")</script>\x1b[31m\u202e&')
    return plan_weights([*uses, hostile, replace(use_of("lut1"), name="tiny")], engine("M1"))


def test_bars_are_to_scale() -> None:
    root = ElementTree.fromstring(svg(plan(), "model"))
    rows = [group.findall(f"{SVG}rect") for group in root.findall(f"{SVG}g")]
    assert len(rows) == 3
    widths = [[float(rect.get("width", 0)) for rect in row] for row in rows]
    assert widths[0][1] / widths[0][0] == pytest.approx(0.25, abs=1e-3)
    assert widths[1][1] == widths[1][0]
    assert [row[1].get("fill") for row in rows] == [COLOURS[o] for o in (Outcome.STREAMS, Outcome.FOLDS, Outcome.REFUSED)]


def test_names_are_escaped_and_nothing_is_loaded() -> None:
    for drawn in (svg(plan(), "<model>"), html(plan(), "<model>")):
        assert "<script" not in drawn
        assert "\x1b" not in drawn
        assert "\u202e" not in drawn
        assert "&lt;script&gt;" in drawn
        assert not re.search(r"(src|href|url)\s*[=(]", drawn)
    assert "what to change" in html(plan(), "m")


def test_each_weight_has_a_bar_if_asked() -> None:
    assert svg(plan(), "m", each=True).count("<g>") == 5
    ElementTree.fromstring(svg(plan_weights([], engine("M1")), "nothing"))


def test_every_outcome_has_a_colour() -> None:
    assert set(COLOURS) == set(Outcome)
