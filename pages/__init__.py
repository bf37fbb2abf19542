"""Everything that writes a page or a table from figures: `python -m pages` for all, `python -m pages quality` for one.

A module here has `written()`: files of the project by path, and the text of each. Figures are those in bench/results;
nothing is measured anew.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

__all__ = ["PAGES", "ROOT", "written"]

PAGES = ("ane", "codec_quality", "deltas", "demo", "odd_values", "performance", "quality", "squizd", "testing", "tiers")
ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))  # which codecs are tried, and what was fuzzed, is listed beside the tests


def written(page: str) -> dict[str, str]:
    files: dict[str, str] = import_module(f"pages.{page}").written()
    return files
