"""A run that is killed, or that meets an I/O error, leaves the old state or nothing or all, and resumes to the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flyweight
from support.toys import write_toy_llama

CHECK_TOKENS = 512
"""As in the driver: expected and actual outputs are checked on the same text."""
DRIVER = Path(__file__).with_name("driver.py")

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "file": ("out.gguf", {"quant": "q8_0"}),
    "file-forced": ("out.gguf", {"quant": "q8_0", "force": True}),
    "directory": ("out", {"to": "hf", "dtype": "f16"}),
    "directory-sharded": ("out", {"to": "hf", "dtype": "f16", "shard_bytes": 30_000}),
    "sealed-file": ("out.squizd", {"quant": "int4"}),
    "directory-of-arrays": ("out", {"to": "npy_dir", "quant": "int8"}),
    "directory-forced": ("out", {"to": "mlx", "quant": "int4", "force": True}),
    "uqff-sharded": ("out", {"to": "uqff", "quant": "afq4", "shard_bytes": 20_000}),
    "uqff-forced": ("out", {"to": "uqff", "quant": "q8_0", "force": True}),
    "uqff-to-0.x": ("out", {"to": "uqff0", "quant": "fp8"}),
    "uqff-from-0.x": ("out", {"to": "uqff"}),
    "package": ("out.mlpackage", {"to": "coreml", "quant": "lut4"}),
    "package-forced": ("out.mlpackage", {"to": "coreml", "quant": "none", "force": True}),
    "package-rewritten": ("out.mlpackage", {"to": "coreml", "quant": "int8"}),
    "file-checked": ("out.gguf", {"quant": "q8_0", "check": True}),
    "sealed-file-checked": ("out.squizd", {"quant": "int4", "check": True}),
    "file-plain": ("out.gguf", {"quant": "q8_0", "plain": True}),
    "directory-forced-plain": ("out", {"to": "mlx", "quant": "int4", "force": True, "plain": True}),
}
SOURCES: dict[str, dict[str, Any]] = {
    "uqff-from-0.x": {"to": "uqff0", "quant": "q8_0"},
    "package-rewritten": {"to": "coreml", "quant": "none"},
}
"""What is converted, where it is not the toy itself but made of it."""
OLD = {"out": {"to": "hf", "dtype": "f32"}, "out.gguf": {"quant": "q4_0"}, "out.mlpackage": {"to": "coreml", "quant": "lut2"}}
"""What is replaced: another output of the same source."""


def sweep(memory_path: Path, job: str, mode: str, *code: str) -> list[dict[str, Any]]:
    name, options = JOBS[job]
    source = write_toy_llama(memory_path / "toy", layers=1)
    if job in SOURCES:
        flyweight.convert(source, memory_path / "source", jobs=1, **SOURCES[job])
        source = memory_path / "source"
    expected, target, old = (memory_path / folder / name for folder in ("expected", "real", "old"))
    for place in (expected, target, old):
        place.parent.mkdir()
    flyweight.convert(source, expected, jobs=1, **{key: options[key] for key in options.keys() - {"force", "plain"}})
    if "force" in options:
        flyweight.convert(source, old, jobs=1, **OLD[name])
    places = [str(place) for place in (source, target, expected, old)]
    command = [sys.executable, str(DRIVER), mode, *places, json.dumps(options), *code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    header, *points = map(json.loads, done.stdout.splitlines())
    assert header["total"] == len(points) > 20
    return points


@pytest.fixture(autouse=True)
def short_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.measuring.CHECK_TOKENS", CHECK_TOKENS)


@pytest.mark.parametrize("job", JOBS)
def test_kill_at_every_write_path_call(memory_path: Path, job: str) -> None:
    points = sweep(memory_path, job, "kill")
    assert {p["status"] for p in points} == {-9}
    assert [p for p in points if p["after"] == "half"] == []
    assert [p for p in points if not p["resumed"]] == []
    # Where two names cannot be swapped in one step, the old state is aside for a moment; whoever runs next puts it back.
    assert [p["after"] for p in points].count("aside") == (job == "directory-forced-plain")
    assert {p["after"] for p in points} - {"aside"} == {"old", "complete"}


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("file", "EIO"),
        ("directory-sharded", "ENOSPC"),
        ("directory-forced", "EIO"),
        ("uqff-sharded", "EIO"),
        ("uqff-from-0.x", "ENOSPC"),
        ("package-forced", "ENOSPC"),
        ("package-rewritten", "EIO"),
    ],
)
def test_error_at_every_write_path_call(memory_path: Path, job: str, code: str) -> None:
    points = sweep(memory_path, job, "raise", code)
    assert [p for p in points if p["after"] == "half"] == []
    assert [p for p in points if not p["resumed"]] == []
    assert {p["status"] for p in points if p["after"] != "complete"} <= {5, 6}
