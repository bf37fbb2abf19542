"""Pages with figures say what was measured: each is what its writer makes of the recorded results, and none is far behind."""

from __future__ import annotations

import pytest

import pages
from bench import count_tests, recorded
from fuzz import ledger
from pages import markdown, testing

NEAR = 0.25
"""How far a figure may fall behind before tests have to be counted again: `python -m bench.count_tests`."""


@pytest.mark.parametrize("page", [page for page in pages.PAGES if page != "odd_values"])  # tests/laws has that
def test_the_page_is_generated(page: str) -> None:
    for path, text in pages.written(page).items():
        assert (pages.ROOT / path).read_text("utf-8") == text, f"run `python -m pages {page}`"


def test_every_page_is_listed() -> None:
    modules = {path.stem for path in (pages.ROOT / "pages").glob("*.py") if "def written(" in path.read_text("utf-8")}
    assert modules - {"__init__"} == set(pages.PAGES)


def test_a_changed_figure_shows() -> None:
    text, counted = (pages.ROOT / testing.PAGE).read_text("utf-8"), recorded("testing")
    assert testing.page(text, counted | {"codecs": counted["codecs"] + 1}, ledger.rows()) != text
    assert testing.page(text, counted, [*ledger.rows(), ledger.rows()[0]]) != text


def test_the_figures_are_not_stale() -> None:
    counted, there = recorded("testing"), count_tests.structure()
    assert counted["hostile"].keys() == there["hostile"].keys()
    assert counted["tests"].keys() == count_tests.FOLDERS.keys()
    pairs = [(counted[key], there[key]) for key in ("codecs", "containers", "kernels", "targets", "verbs")]
    pairs += [(counted["hostile"][name], cases) for name, cases in there["hostile"].items()]
    for said, real in pairs:
        assert abs(said - real) <= NEAR * real, f"the page says {said}, there are {real}"


def test_tables() -> None:
    rows = [("a", 1234, ""), ("b", 5, "x")]
    assert markdown.table(("", "n", "text"), rows) == "| | n | text |\n|---|---:|---|\n| a | 1,234 | |\n| b | 5 | x |"
    assert markdown.aligned(("", "n"), [("long", "5"), ("b", "10.5")]) == "         n\nlong     5\nb     10.5"
    assert markdown.between("x\n<!-- t -->\nold\n<!-- /t -->\ny", "t", "new") == "x\n<!-- t -->\nnew\n<!-- /t -->\ny"
    with pytest.raises(ValueError, match="no place for 'other'"):
        markdown.between("", "other", "new")
