"""What tests share: models and files to try, every codec with parameters, the command line in this process."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
"""Bytes that other tools wrote, each with its provenance."""
