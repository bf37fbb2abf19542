"""Links between pages of the documentation lead somewhere, and files they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


NAMED = re.compile(r"`(?:python )?((?:src|native|tests|bench|pages|tools|docs)/[\w./*-]+)")
MODULE = re.compile(r"python -m ((?:bench|pages)(?:\.\w+)*)")


def anchors(page: Path) -> set[str]:
    """As the usual renderers make them of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text("utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} is not there"
        assert not anchor or anchor in anchors(target), f"{path} has no heading #{anchor}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "decisions"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_files_that_are_named_are_there(page: Path) -> None:
    """But for decisions, which speak of their own time."""
    text = page.read_text("utf-8")
    modules = (name.replace(".", "/") for name in MODULE.findall(text))
    named = [*(name.rstrip("/.") for name in NAMED.findall(text)), *(f"{name}*" for name in modules)]
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_table_of_sub_blocks_is_the_measured_one() -> None:
    link = re.search(r"\[The measured table\]\(([^#)]*)", (ROOT / "docs/how-to/squizd.md").read_text("utf-8"))
    assert link
    assert "bits/weight" in (ROOT / "docs/how-to" / link[1]).read_text("utf-8")
