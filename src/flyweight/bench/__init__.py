"""Measuring speed as a ratio: contenders side by side, and beside what the machine's memory allows in the same run."""

from flyweight.bench.cases import codec_cases
from flyweight.bench.harness import Case, headline, line, machine, main, run

__all__ = ["Case", "codec_cases", "headline", "line", "machine", "main", "run"]
