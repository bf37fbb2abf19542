"""Writes the pages and tables that hold figures: `make pages`, or `python -m pages.NAME` for one of them."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))  # which codecs and mutations are tried is listed beside the tests
