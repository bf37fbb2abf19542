"""A build of a tier that is killed leaves nothing that would be run wrongly, and the next one ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flyweight
from support.toys import write_toy_llama

DRIVER = Path(__file__).with_name("tier_driver.py")


def sweep(memory_path: Path, tier: str, where: str, mode: str, *code: str) -> list[dict[str, Any]]:
    root = memory_path / "model"
    flyweight.convert(write_toy_llama(memory_path / "toy", layers=1), root, to="npy_dir", quant="int4-legacy")
    command = [sys.executable, str(DRIVER), str(root), tier, where, mode, *code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    header, *points = map(json.loads, done.stdout.splitlines())
    assert header["total"] == len(points) > 20
    return points


@pytest.mark.parametrize("where", ["cache", "in-place"])
@pytest.mark.parametrize("tier", ["packed", "finalized"])
def test_kill_at_every_write_path_call(memory_path: Path, tier: str, where: str) -> None:
    points = sweep(memory_path, tier, where, "kill")
    assert {p["status"] for p in points} == {-9}
    assert [p for p in points if not p["right"]] == []
    assert {p["ran"] for p in points} <= {"int4", tier}
    assert [p for p in points if not p["resumed"] or p["ended"] != tier] == []
    assert where == "in-place" or all(p["untouched"] for p in points), "nothing is written into the model's directory"


def test_a_full_disk_at_every_write_path_call(memory_path: Path) -> None:
    points = sweep(memory_path, "packed", "cache", "raise", "ENOSPC")
    assert [p for p in points if not p["right"] or not p["resumed"]] == []
