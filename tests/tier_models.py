"""A toy in every form of an npy-dir, and what its tiers hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import flyweight
from flyweight.tiers import Choice, open_best

FORMS = ("int8", "int8-g32", "int4", "int4-legacy", "int3", "nf4", "none")
Q = "model.layers.0.self_attn.q_proj.weight"


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
