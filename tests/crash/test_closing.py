"""Closing under readers, at random moments: right bytes or "is closed", never zeros, another file's bytes or a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "closing_driver.py"
KINDS = ("file", "bundle", "checkpoint", "npy-dir", "zstd", "model")
ROUNDS = 15


def drive(*arguments: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(DRIVER.parent.parent)}
    command = [sys.executable, str(DRIVER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("closing")
    drive(made, "prepare")
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_readers_get_right_bytes_or_an_error(kind: str, folder: Path) -> None:
    assert int(drive(folder, kind, ROUNDS, 1)) > ROUNDS
