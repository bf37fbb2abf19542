"""Speed as a ratio: contenders measured in the same run as each other and as the machine's memory."""

from flyweight.bench.cases import codec_cases
from flyweight.bench.harness import Case, headline, line, machine, main, run

__all__ = ["Case", "codec_cases", "headline", "line", "machine", "main", "run"]
