"""Statistics files by hand, with independent code, and such as somebody made to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.foundation.errors import FlyweightError
from flyweight.statistics_files.gram_form import diagonal_of, pack, tiles, unpack
from flyweight.statistics_files.known_files import open_statistics
from support.toys import safetensors_bytes

GRAM = np.array([[4.0, 1.0, 0.0], [1.0, 1.0, -0.5], [0.0, -0.5, 9.0]], np.float32)
ROOTS = np.sqrt(np.diag(GRAM))
PACKED = (GRAM / np.outer(ROOTS, ROOTS))[np.tril_indices(3)].astype(np.float16)
ABOUT: dict[str, Any] = {"version": 1, "tokens": 64, "inputs": {"a.q": {"a.q": 5, "a.k": 2}}}
PARTS = {
    "a.q.importance": np.array([4, 1, 9], np.float32),
    "a.q.gram_diagonal": np.diag(GRAM).copy(),
    "a.q.gram": PACKED,
    "model.sketch": np.ones(4, np.float32),
}


def written(path: Path, parts: dict[str, Any] = PARTS, about: Any = ABOUT, key: str = "flyweight.statistics") -> Path:
    text = about if isinstance(about, str) else json.dumps(about)
    path.write_bytes(safetensors_bytes({name: array for name, array in parts.items() if array is not None}, {key: text}))
    return path


def test_every_field_is_read(tmp_path: Path) -> None:
    with open_statistics(written(tmp_path / "x")) as found:
        assert found.matrices == {"a.q.weight": (5, 3), "a.k.weight": (2, 3)}
        one, other = found.inputs_of("a.q.weight"), found.inputs_of("a.k.weight")
        assert one is not None
        assert other is not None
        assert one.importance.tolist() == [4, 1, 9]
        assert one.tokens == 64
        assert one.gram is not None
        assert np.allclose(one.gram, GRAM, rtol=2.0**-11)
        assert one.gram is other.gram, "it is read once"
        assert found.sketch is not None
        assert found.has_gram


@pytest.mark.parametrize("columns", [1, 3, 255, 256, 257, 700])
def test_packing_and_back(columns: int) -> None:
    x = np.random.default_rng(1).standard_normal((columns + 5, columns)).astype(np.float32)
    x[:, columns // 2] = 0
    gram = x.T @ x
    lower = [gram[start:stop, :stop].copy() for start, stop in tiles(columns)]
    packed = np.concatenate(list(pack(lower, diagonal_of(lower))))
    assert packed.shape == (columns * (columns + 1) // 2,)
    assert packed.dtype == np.float16
    back = unpack(packed, diagonal_of(lower), name="x")
    roots = np.sqrt(np.diag(gram))
    assert (np.abs(back - gram) <= 2.0**-11 * np.outer(roots, roots)).all()


NAN = np.array([1, np.nan, 1], np.float32)
HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "no importance": (PARTS | {"a.q.importance": None}, ABOUT),
    "importance of rank 2": (PARTS | {"a.q.importance": np.ones((3, 1), np.float32)}, ABOUT),
    "importance of f16": (PARTS | {"a.q.importance": np.ones(3, np.float16)}, ABOUT),
    "importance of nothing": (PARTS | {"a.q.importance": np.ones(0, np.float32)}, ABOUT),
    "importance that is no number": (PARTS | {"a.q.importance": NAN}, ABOUT),
    "negative importance": (PARTS | {"a.q.importance": -np.ones(3, np.float32)}, ABOUT),
    "no diagonal": (PARTS | {"a.q.gram_diagonal": None}, ABOUT),
    "no correlations": (PARTS | {"a.q.gram": None}, ABOUT),
    "a short diagonal": (PARTS | {"a.q.gram_diagonal": np.ones(2, np.float32)}, ABOUT),
    "a negative diagonal": (PARTS | {"a.q.gram_diagonal": -np.ones(3, np.float32)}, ABOUT),
    "too few correlations": (PARTS | {"a.q.gram": PACKED[:-1]}, ABOUT),
    "correlations of f32": (PARTS | {"a.q.gram": PACKED.astype(np.float32)}, ABOUT),
    "a tensor of no input": (PARTS | {"b.importance": np.ones(3, np.float32)}, ABOUT),
    "a sketch of rank 2": (PARTS | {"model.sketch": np.ones((2, 2), np.float32)}, ABOUT),
    "no inputs": (PARTS, ABOUT | {"inputs": {}}),
    "inputs that are none": (PARTS, ABOUT | {"inputs": {"a.q": 3}}),
    "an input without itself": (PARTS, ABOUT | {"inputs": {"a.q": {"a.k": 2}}}),
    "rows that are none": (PARTS, ABOUT | {"inputs": {"a.q": {"a.q": 0}}}),
    "rows that are true": (PARTS, ABOUT | {"inputs": {"a.q": {"a.q": True}}}),
    "a matrix in two inputs": (
        PARTS | {"b.importance": np.ones(3, np.float32)},
        ABOUT | {"inputs": {"a.q": {"a.q": 5, "a.k": 2}, "b": {"b": 1, "a.k": 2}}},
    ),
    "tokens below none": (PARTS, ABOUT | {"tokens": -1}),
    "no tokens": (PARTS, {"version": 1, "inputs": ABOUT["inputs"]}),
    "another version": (PARTS, ABOUT | {"version": 2}),
    "no version": (PARTS, {"tokens": 1, "inputs": {}}),
    "a list": (PARTS, "[]"),
    "no JSON": (PARTS, "{"),
}


@pytest.mark.parametrize(("parts", "about"), HOSTILE.values(), ids=HOSTILE)
def test_what_breaks_a_rule_is_refused(parts: dict[str, Any], about: Any, tmp_path: Path) -> None:
    with pytest.raises(FlyweightError) as caught:
        open_statistics(written(tmp_path / "x", parts, about))
    assert caught.value.file is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0, -2.0])
def test_correlations_that_are_none_are_refused_when_they_are_read(value: float, tmp_path: Path) -> None:
    packed = PACKED.copy()
    packed[3] = value
    with open_statistics(written(tmp_path / "x", PARTS | {"a.q.gram": packed})) as found:
        known = found.inputs_of("a.q.weight")
        assert known is not None
        with pytest.raises(FlyweightError, match="E_STATISTICS"):
            _ = known.gram


def test_a_model_is_no_statistics(tmp_path: Path) -> None:
    with pytest.raises(FlyweightError, match="no statistics"):
        open_statistics(written(tmp_path / "x", key="other"))
