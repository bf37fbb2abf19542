"""A small base and fine-tunes of it, in directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.support.toys import llama_tensors, safetensors_bytes, toy_llama_files, write_files

Arrays = dict[str, np.ndarray]


def tuned(arrays: Mapping[str, np.ndarray], step: float = 1e-3, seed: int = 1) -> Arrays:
    """Every weight moved a little, in its own type."""
    rng = np.random.default_rng(seed)
    moved = {
        name: array.astype(np.float32) + step * rng.standard_normal(array.shape, np.float32) for name, array in arrays.items()
    }
    return {name: moved[name].astype(array.dtype) for name, array in arrays.items()}


def write_model(root: Path, arrays: Mapping[str, np.ndarray] | None = None, **files: bytes | None) -> Path:
    """A complete model directory with these weights. Keyword arguments are side files, such as `notes_txt`; None: not there."""
    content = toy_llama_files() | {"model.safetensors": safetensors_bytes(dict(arrays or llama_tensors()), {"format": "pt"})}
    for name, data in files.items():
        file = ".".join(name.rsplit("_", 1))
        content.pop(file, None)
        content |= {file: data} if data is not None else {}
    return write_files(root, content)


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
