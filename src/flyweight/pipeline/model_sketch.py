"""A sketch of a model: some of its weights, by which statistics find out whether they are of this model.

    matrices   16 of those in layers, evenly spaced in the order of their canonical names; all, if there are fewer
    rows       4 of each, columns 64 of each of these, evenly spaced; in the canonical order of rows

The same model gives the same sketch in whatever container, and nearly the same one with whatever codec: the cosine of two
sketches says how near two models are, and needs no digest of bytes, which a conversion changes. Two models that were trained
apart have a cosine near 0, and so have two of the same function with their channels in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.tensor import has_rows
from flyweight.models import Blueprint
from flyweight.models.transform import Stored
from flyweight.pipeline.rows import decode_rows, read_rows, spaced

Array = np.ndarray[Any, Any]

SAME_MODEL = 0.9
"""The least cosine of sketches of one model: codecs of 4 bits keep .996, of 2 bits .96, a fine-tune by 1 % keeps .9999."""
_MATRICES, _ROWS, _COLUMNS = 16, 4, 64


def sketch_of(checkpoint: Checkpoint, model: Blueprint) -> Array:
    """f32 (n,)"""
    entries = checkpoint.manifest.entries
    names = [name for name in sorted(model.tensors) if name.startswith("model.layers.")]
    matrices = [name for name in names if len(entries[model.tensors[name].name].spec.shape) == 2]
    return np.concatenate([_sample(checkpoint, name, model.tensors[name]) for name in _spaced(matrices, _MATRICES)])


def cosine(one: Array, other: Array) -> float:
    """Of two sketches; 0 for those of other lengths."""
    if one.shape != other.shape:
        return 0.0
    a, b = one.astype(np.float64), other.astype(np.float64)
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else float(np.array_equal(a, b))


def _spaced(names: list[str], count: int) -> list[str]:
    return [names[index] for index in spaced(len(names), count)]


def _sample(checkpoint: Checkpoint, canonical: str, stored: Stored) -> Array:
    entry = checkpoint.manifest.entries[stored.name]
    transform, spec = stored.to(Stored(canonical)).transform, entry.spec
    chosen = spaced(spec.rows, _ROWS)
    if has_rows(spec, entry.parts):
        slabs = (read_rows(checkpoint, stored.name, row, row + 1, transform) for row in chosen)
        rows = np.stack([decode_rows(slab, transform).reshape(-1) for slab in slabs])
    else:
        rows = decode_rows(read_rows(checkpoint, stored.name, 0, spec.rows, transform), transform).reshape(spec.shape)[chosen]
    return np.asarray(rows[:, spaced(spec.columns, _COLUMNS)], np.float32).reshape(-1)
