"""Opening a file of statistics, whichever kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from flyweight.foundation.errors import UnsupportedError
from flyweight.sources import FileSource
from flyweight.statistics_files.imatrix import ImatrixDatForm, ImatrixForm, is_dat, is_gguf, read_dat, read_imatrix
from flyweight.statistics_files.statistics_file import StatisticsForm, is_statistics_file, read_statistics_file
from flyweight.statistics_files.statistics_form import Form
from flyweight.statistics_files.stored import StoredStatistics


def open_statistics(path: Path | str) -> StoredStatistics:
    """Ours or llama.cpp's, by their first bytes. `close` it, or use it as a context manager."""
    path = Path(path)
    with closing(FileSource(path)) as source:
        read = next((read for looks_so, read in _KINDS if looks_so(source)), None)
    if read is not None:
        return read(path)
    raise UnsupportedError(
        "neither a statistics file nor an importance matrix of llama.cpp", code="E_STATISTICS", file=str(path),
        hint="`flyweight calibrate MODEL -o FILE` makes one",
    )  # fmt: skip


IMATRIX_SUFFIXES = (".gguf", ".dat")
_KINDS = ((is_statistics_file, read_statistics_file), (is_gguf, read_imatrix), (is_dat, read_dat))


def form_for(path: Path, stored_names: Mapping[str, str], windows: int) -> Form:
    """The kind of file that a name asks for: `x.gguf` and `x.dat` are llama.cpp's, any other is ours."""
    if path.suffix == ".gguf":
        return ImatrixForm(stored_names)
    if path.suffix == ".dat":
        return ImatrixDatForm(stored_names, windows)
    return StatisticsForm()
