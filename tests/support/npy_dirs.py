"""npy-dirs laid out by hand, and the arrays of one as NumPy reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

__all__ = ["array", "weights", "write_dir"]


def array(path: Path, name: str) -> np.ndarray:
    return np.load(path / "tensors" / f"{name}.npy")


def write_dir(root: Path, tensors: dict[str, dict[str, np.ndarray]], **more: bytes) -> Path:
    """A directory by the book: tensor → suffix → array."""
    (root / "tensors").mkdir(parents=True)
    (root / "manifest.json").write_text(json.dumps({name: name.replace(".", "__") for name in tensors}))
    for name, arrays in tensors.items():
        for suffix, values in arrays.items():
            np.save(root / "tensors" / f"{name.replace('.', '__')}{suffix}.npy", values)
    (root / "tensors" / ".manifest_ready").touch()
    for name, raw in more.items():
        (root / f".{name}").write_bytes(raw)
    return root


def weights(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
