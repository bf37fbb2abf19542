"""Writes the pages that are named, or all: python -m pages [NAME ...]"""

import sys

from pages import PAGES, ROOT, written

for page in sys.argv[1:] or PAGES:
    for path, text in written(page).items():
        (ROOT / path).write_text(text, encoding="utf-8")
