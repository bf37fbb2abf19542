"""Files that hold what is known of the inputs of a model's matrices: our own (`docs/formats/statistics.md`) and llama.cpp's."""

from flyweight.statistics_files.opening import open_statistics
from flyweight.statistics_files.stored import StoredStatistics

__all__ = ["StoredStatistics", "open_statistics"]
