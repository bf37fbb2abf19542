"""Lossy deltas that the public tool wrote: each weight is rebuilt to the bits of its own reader."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.deltas.kind import Kind, ranges
from flyweight.deltas.wdelta_file import read_wdelta
from flyweight.sources import FileSource

GOLDEN = Path(__file__).parents[2] / "golden" / "wdelta_lossy"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
BASES = {"edges": "edges.npz", "sharded": "base_of_sharded.safetensors"}


def base_of(file: str) -> dict[str, np.ndarray]:
    path = GOLDEN / BASES.get(file.split("_")[0], "base.safetensors")
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    with flyweight.open(path) as checkpoint:
        return {name: np.array(checkpoint[name]) for name in checkpoint}


def rebuilt(kind: Kind, base: np.ndarray) -> np.ndarray:
    kind.check()
    out = np.empty(base.size, np.float32)
    for start, stop in ranges(base.size):
        kind.rebuild(start, stop, base.reshape(-1)[start:stop], out[start:stop])
    return out.reshape(base.shape)


@pytest.mark.parametrize("file", EXPECTED)
def test_the_reconstruction_is_that_of_the_public_reader(file: str) -> None:
    changes, base = read_wdelta(FileSource(GOLDEN / file), file).changes, base_of(file)
    assert changes.keys() >= EXPECTED[file].keys()
    for name, digest in EXPECTED[file].items():
        kind = changes[name].parts["data"]
        assert kind.spec.shape == base[name].shape
        assert hashlib.sha256(rebuilt(kind, base[name]).tobytes()).hexdigest() == digest, name


def test_an_array_of_nothing_is_read_though_the_public_reader_divides_by_zero() -> None:
    file = "edges_quantized.wdelta"
    changes, base = read_wdelta(FileSource(GOLDEN / file), file).changes, base_of(file)
    for name in changes.keys() - EXPECTED[file].keys():
        assert rebuilt(changes[name].parts["data"], base[name]).shape == base[name].shape
    assert changes.keys() - EXPECTED[file].keys() == {"nothing", "no_columns"}
