"""A run that is killed, or that meets an I/O error, leaves the old state or nothing or all, and resumes to the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flyweight
from toys import write_toy_llama

DRIVER = Path(__file__).with_name("driver.py")

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "file": ("out.gguf", {"quant": "q8_0"}),
    "file-forced": ("out.gguf", {"quant": "q8_0", "force": True}),
    "directory": ("out", {"to": "hf", "dtype": "f16"}),
    "directory-sharded": ("out", {"to": "hf", "dtype": "f16", "shard_bytes": 30_000}),
    "sealed-file": ("out.squizd", {"quant": "int4"}),
    "directory-of-arrays": ("out", {"to": "npy_dir", "quant": "int8"}),
    "directory-forced": ("out", {"to": "mlx", "quant": "int4", "force": True}),
}


def sweep(memory_path: Path, job: str, mode: str, *code: str) -> list[dict[str, Any]]:
    name, options = JOBS[job]
    source, expected, target = (
        write_toy_llama(memory_path / "toy", layers=1),
        memory_path / "expected" / name,
        memory_path / "real" / name,
    )
    expected.parent.mkdir()
    target.parent.mkdir()
    flyweight.convert(source, expected, jobs=1, **{**options, "force": False})
    command = [sys.executable, str(DRIVER), mode, str(source), str(target), str(expected), json.dumps(options), *code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    header, *points = map(json.loads, done.stdout.splitlines())
    assert header["total"] == len(points) > 20
    return points


@pytest.mark.parametrize("job", JOBS)
def test_kill_at_every_write_path_call(memory_path: Path, job: str) -> None:
    points = sweep(memory_path, job, "kill")
    assert {p["status"] for p in points} == {-9}
    assert [p for p in points if p["after"] == "half"] == []
    assert [p for p in points if not p["resumed"]] == []
    assert {p["after"] for p in points} == {"old", "complete"}


@pytest.mark.parametrize(("job", "code"), [("file", "EIO"), ("directory-sharded", "ENOSPC"), ("directory-forced", "EIO")])
def test_error_at_every_write_path_call(memory_path: Path, job: str, code: str) -> None:
    points = sweep(memory_path, job, "raise", code)
    assert [p for p in points if p["after"] == "half"] == []
    assert [p for p in points if not p["resumed"]] == []
    assert {p["status"] for p in points if p["after"] != "complete"} <= {5, 6}
