"""docs/testing.md says what was counted, and what was counted is near what there is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from fuzz import ledger

ROOT = Path(__file__).parents[2]
NEAR = 0.25
"""How far a figure may fall behind before the page has to be made again: `python tools/count_tests.py`."""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_tests", ROOT / "tools/count_tests.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_generated(tool: ModuleType) -> None:
    text, counted = tool.PAGE.read_text(), json.loads(tool.COUNTED.read_text())
    assert tool.page(text, counted, ledger.rows()) == text, "run `python tools/count_tests.py --page`"


def test_a_changed_figure_shows(tool: ModuleType) -> None:
    text, counted = tool.PAGE.read_text(), json.loads(tool.COUNTED.read_text())
    assert tool.page(text, counted | {"codecs": counted["codecs"] + 1}, ledger.rows()) != text
    assert tool.page(text, counted, [*ledger.rows(), ledger.rows()[0]]) != text


def test_the_figures_are_not_stale(tool: ModuleType) -> None:
    counted, there = json.loads(tool.COUNTED.read_text()), tool.structure()
    assert counted["hostile"].keys() == there["hostile"].keys()
    assert counted["tests"].keys() == tool.FOLDERS.keys()
    pairs = [(counted[key], there[key]) for key in ("codecs", "containers", "kernels", "targets", "verbs")]
    pairs += [(counted["hostile"][name], cases) for name, cases in there["hostile"].items()]
    for said, real in pairs:
        assert abs(said - real) <= NEAR * real, f"the page says {said}, there are {real}"
