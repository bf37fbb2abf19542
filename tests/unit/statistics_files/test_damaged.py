"""Genuine files of every kind, damaged at random: they are read, or refused as a file is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flyweight.calibration import calibrate
from flyweight.calibration.sampling import Text
from flyweight.foundation.errors import FlyweightError
from flyweight.statistics_files.known_files import open_statistics
from support import GOLDEN
from support.toys import toy_llama_files, write_files

TRIES = 250


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("damaged")
    toy = write_files(folder / "toy", toy_llama_files(layers=1))
    calibrate(toy, folder / "toy.stats", texts=[Text("w", "abc ab a b 12 c! " * 60)], tokens=256, window=32, gram=True)
    found = {name: (GOLDEN / "imatrix" / f"toy.imatrix.{name}").read_bytes() for name in ("gguf", "dat")}
    return found | {"stats": (folder / "toy.stats").read_bytes()}


def damaged(raw: bytes, random: np.random.Generator) -> bytes:
    """Bytes changed, cut out, doubled or cut off, most often in the header."""
    made = bytearray(raw)
    for _ in range(int(random.integers(1, 4))):
        at = int(random.integers(0, min(len(made), 4000) if random.random() < 0.8 else len(made)))
        match int(random.integers(5)):
            case 0:
                made[at] = int(random.integers(256))
            case 1:
                made[at] ^= 1 << int(random.integers(8))
            case 2:
                del made[at : at + int(random.integers(1, 40))]
            case 3:
                made[at:at] = made[at : at + int(random.integers(1, 40))]
            case _:
                made[at : at + 8] = random.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
    return bytes(made[: len(made) - (int(random.integers(1, 200)) if random.random() < 0.1 else 0)])


@pytest.mark.parametrize("kind", ["stats", "gguf", "dat"])
def test_damage_is_refused_or_harmless(kind: str, files: dict[str, bytes], tmp_path: Path) -> None:
    random, refused = np.random.default_rng(5), 0
    for number in range(TRIES):
        (tmp_path / "x").write_bytes(damaged(files[kind], random))
        try:
            with open_statistics(tmp_path / "x") as found:
                for name in found.matrices:
                    known = found.inputs_of(name)
                    assert known is not None
                    assert np.isfinite(known.importance).all()
                    assert known.gram is None or np.isfinite(known.gram).all()
        except FlyweightError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"try {number}") from error
    assert refused > TRIES // 5
