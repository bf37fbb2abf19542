"""Where the runs that are killed write to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """In memory where there is such a place: thousands of fsync calls are tested for their order, not for the disk."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    yield Path(folder)
    shutil.rmtree(folder)
