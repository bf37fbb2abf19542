"""A toy in every form of an npy-dir, and what its tiers hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.tiers import Choice, open_best
from flyweight.tiers.arrays import Arrays
from flyweight.writing import own

FORMS = ("int8", "int8-g32", "int4", "int4-legacy", "int3", "nf4", "none")
Q = "model.layers.0.self_attn.q_proj.weight"


def become(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go on as the user who has this home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    own._key.cache_clear()
    return home


def home_of(model: Path) -> Path:
    """Where the user's cache has the tiers of a model."""
    found = Arrays(model).home()
    assert found is not None
    return found.path


def everything(root: Path) -> dict[str, tuple[int, ...]]:
    """Every name below a directory, and what would tell that someone was at it: kind, inode, size, both times, content."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        content = hash(path.read_bytes()) if path.is_file() and not path.is_symlink() else 0
        found[str(path)] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, content)
    return found


def other_model(made: Path, place: Path, form: str = "int4") -> Path:
    """An npy-dir of a model of which a row of weights has other signs."""
    with flyweight.open(made / "toy") as checkpoint:
        entry = checkpoint.manifest.entries[Q]
    extent, width = entry.extents["data"], entry.spec.dtype.itemsize
    source = shutil.copytree(made / "toy", place.with_name(f"{place.name}-source"))
    raw = bytearray((source / extent.file).read_bytes())
    for at in range(width - 1, width * entry.spec.columns, width):
        raw[extent.offset + at] ^= 0x80
    (source / extent.file).write_bytes(raw)
    flyweight.convert(source, place, to="npy_dir", quant=form)
    return place


def values(path: Path, **options: Any) -> tuple[Choice, dict[str, np.ndarray]]:
    checkpoint, choice = open_best(path, **options)
    with checkpoint:
        return choice, {name: np.array(checkpoint[name]) for name in checkpoint}


def arrays(path: Path) -> dict[str, np.ndarray]:
    with flyweight.open(path) as checkpoint:
        return {name: np.array(checkpoint[name]) for name in checkpoint}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flyweight", *map(str, arguments)], capture_output=True, text=True, timeout=60)
