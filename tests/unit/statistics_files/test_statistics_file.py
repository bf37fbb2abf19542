"""Statistics files by hand, with independent code. Hostile ones are in `tests/fuzz`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.foundation.errors import FlyweightError
from flyweight.statistics_files.gram_form import diagonal_of, pack, tiles, unpack
from flyweight.statistics_files.known_files import open_statistics
from support.statistics_files import GRAM, PACKED, PARTS, ours


def written(path: Path, parts: dict[str, Any] = PARTS) -> Path:
    path.write_bytes(ours(parts))
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


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0, -2.0])
def test_correlations_that_are_none_are_refused_when_they_are_read(value: float, tmp_path: Path) -> None:
    packed = PACKED.copy()
    packed[3] = value
    with open_statistics(written(tmp_path / "x", PARTS | {"a.q.gram": packed})) as found:
        known = found.inputs_of("a.q.weight")
        assert known is not None
        with pytest.raises(FlyweightError, match="E_STATISTICS"):
            _ = known.gram
