"""Four bits added in place: whatever stops the run, the directory has its old values or its new ones, and can go on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from support.toys import safetensors_bytes

DRIVER = Path(__file__).with_name("adding_driver.py")


@pytest.fixture
def eights() -> Iterator[Path]:
    """A directory of int8, in memory where there is such a place."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    random = np.random.default_rng(5)
    shapes = {"a.weight": (6, 64), "b.weight": (4, 96), "norm.weight": (64,)}
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (folder / "toy.safetensors").write_bytes(safetensors_bytes(tensors))
    flyweight.convert(folder / "toy.safetensors", folder / "eights", to="npy_dir", quant="int8")
    yield folder / "eights"
    shutil.rmtree(folder)


def sweep(eights: Path, mode: str, form: str, other: str, *code: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(DRIVER), mode, str(eights), form, other, *code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    header, *points = map(json.loads, done.stdout.splitlines())
    assert header["total"] == len(points) > 30
    assert [p for p in points if p["after"] == "half" or not p["sound"]] == []
    assert [p for p in points if not p["ended"]] == []
    assert {p["after"] for p in points} == {"old", "complete"}
    return points


@pytest.mark.parametrize(("form", "other"), [("int4", "int4-legacy"), ("int4-legacy", "int4-g64")])
def test_kill_at_every_write_path_call(eights: Path, form: str, other: str) -> None:
    points = sweep(eights, "kill", form, other)
    assert {p["status"] for p in points} == {-9}


def test_kill_of_a_run_on_a_directory_without_record(eights: Path) -> None:
    (eights / "flyweight.json").unlink()
    sweep(eights, "kill", "int4-g64", "int4")


def test_full_disk_at_every_write_path_call(eights: Path) -> None:
    points = sweep(eights, "raise", "int4", "int4-legacy", "ENOSPC")
    assert {p["status"] for p in points if p["after"] == "old"} <= {5, 6}
