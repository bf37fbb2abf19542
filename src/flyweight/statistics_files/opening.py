"""Opening a file of statistics, whichever kind it is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from flyweight.foundation.errors import UnsupportedError
from flyweight.sources import FileSource
from flyweight.statistics_files.statistics_file import is_statistics_file, read_statistics_file
from flyweight.statistics_files.stored import StoredStatistics


def open_statistics(path: Path | str) -> StoredStatistics:
    """Ours or llama.cpp's, by their first bytes. `close` it, or use it as a context manager."""
    path = Path(path)
    with closing(FileSource(path)) as source:
        ours = is_statistics_file(source)
    if ours:
        return read_statistics_file(path)
    raise UnsupportedError(
        "neither a statistics file nor an importance matrix of llama.cpp", code="E_STATISTICS", file=str(path),
        hint="`flyweight calibrate MODEL -o FILE` makes one",
    )  # fmt: skip
