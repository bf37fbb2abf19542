"""Pairs that other tools for deltas crash on or get wrong: shapes of nothing, unchanged weights, other tensors, large ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.checkpoint.model_opening import MAX_CHAIN
from flyweight.foundation.errors import LimitError
from support.toys import write_files
from support.wdelta_files import BASE, BASE_TENSORS, NAME, PUBLIC, safetensors

STRATEGIES: dict[str, dict[str, object]] = {
    "exact": {},
    "sparse": {"sparsity": 0.5},
    "quantized": {},
    "int4": {},
    "lowrank": {"rank": 1},
    "auto": {"budget": 0.1},
}
LOSSY = [strategy for strategy in STRATEGIES if strategy != "exact"]
RNG = np.random.default_rng(0)


def model(root: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    return write_files(root, {"config.json": b"{}", "model.safetensors": safetensors(tensors)})


def result(
    tmp_path: Path, strategy: str, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What the delta makes of the base, through files and `apply`."""
    base, tuned, delta = model(tmp_path / "base", before), model(tmp_path / "tuned", after), tmp_path / NAME
    flyweight.create_delta(base, tuned, delta, strategy=strategy, **STRATEGIES[strategy])  # type: ignore[arg-type]
    assert flyweight.verify_delta(delta, base=base).ok
    flyweight.apply_delta(base, [delta], tmp_path / "out")
    with flyweight.open(tmp_path / "out") as out:
        return {name: np.array(out[name]) for name in out}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (3, 0)], ids=str)
def test_scalars_single_elements_and_none(tmp_path: Path, strategy: str, shape: tuple[int, ...]) -> None:
    before, after = (np.full(shape, value, np.float32) for value in (0.5, 0.75))
    made = result(tmp_path, strategy, {"w": before}, {"w": after})["w"]
    assert (made.shape, made.dtype) == (shape, np.float32)
    if strategy in ("exact", "auto"):
        assert made.tobytes() == after.tobytes()
    np.testing.assert_allclose(made, after, atol=1e-3)


@pytest.mark.parametrize("strategy", LOSSY)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_tensors_that_do_not_change_stay_as_they_are(tmp_path: Path, strategy: str, dtype: type) -> None:
    """Bits and type, whatever else changes."""
    before = {name: RNG.standard_normal((8, 16)).astype(dtype) for name in ("kept", "moved")}
    after = before | {"moved": (before["moved"].astype(np.float32) + 0.1).astype(dtype)}
    made = result(tmp_path, strategy, before, after)
    assert made["kept"].tobytes() == before["kept"].tobytes()
    assert {array.dtype for array in made.values()} == {np.dtype(dtype)}
    difference, left = (a.astype(np.float64) for a in (after["moved"] - before["moved"], after["moved"] - made["moved"]))
    assert np.linalg.norm(left) < np.linalg.norm(difference)


@pytest.mark.parametrize("strategy", ["sparse", "int4"])
def test_weights_that_do_not_change_stay_as_they_are(tmp_path: Path, strategy: str) -> None:
    """One weight of many moves: the others keep every bit."""
    before = {"w": RNG.standard_normal((8, 16)).astype(ml_dtypes.bfloat16)}
    after = {"w": before["w"].copy()}
    after["w"][3, 4] = 2.0
    made = result(tmp_path, strategy, before, after)["w"]
    assert np.flatnonzero(made.view(np.uint16) != before["w"].view(np.uint16)).tolist() == [3 * 16 + 4]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensors_that_come_go_and_grow(tmp_path: Path, strategy: str) -> None:
    before = {name: RNG.standard_normal((4, 6)).astype(np.float32) for name in ("stays", "goes", "grows", "shrinks")}
    after = {
        "stays": before["stays"] + np.float32(0.5),
        "grows": np.concatenate([before["grows"], before["grows"][:2]]),
        "shrinks": before["shrinks"][:3],
        "comes": RNG.standard_normal(5).astype(np.float32),
        "ids": np.arange(4),
    }
    made = result(tmp_path, strategy, before, after)
    assert {name: array.shape for name, array in made.items()} == {name: array.shape for name, array in after.items()}
    for name in ("grows", "shrinks", "comes", "ids"):  # nothing is added to these: they are exact in every strategy
        assert made[name].tobytes() == after[name].tobytes()


@pytest.mark.parametrize("strategy", LOSSY)
def test_a_third_step_on_lossy_deltas(tmp_path: Path, strategy: str) -> None:
    """Each delta is made on what those before it give, and the chain gives what its last step says."""
    weights, places = RNG.standard_normal((8, 16)).astype(np.float32), list[Path]()
    below: Path = model(tmp_path / "base", {"w": weights})
    for number in range(3):
        weights = weights + RNG.standard_normal((8, 16)).astype(np.float32) / 10
        places.append(tmp_path / f"{number}.wdelta")
        tuned = model(tmp_path / f"tuned{number}", {"w": weights})
        flyweight.create_delta(below, tuned, places[-1], strategy=strategy, **STRATEGIES[strategy])  # type: ignore[arg-type]
        below = places[-1]
    with flyweight.open(tmp_path / "base", deltas=places) as chain, flyweight.open(places[-1]) as last:
        assert chain["w"].tobytes() == last["w"].tobytes()
        assert flyweight.verify_delta(places[-1]).ok
    flyweight.squash_deltas(tmp_path / "base", places, tmp_path / "all.wdelta")
    with flyweight.open(tmp_path / "base", deltas=[tmp_path / "all.wdelta"]) as squashed, flyweight.open(places[-1]) as last:
        assert squashed["w"].tobytes() == last["w"].tobytes()


@pytest.mark.parametrize("strategy", ["exact", "sparse"])
def test_five_hundred_deltas_are_read_and_no_more(tmp_path: Path, strategy: str) -> None:
    """There and back: a tensor is rebuilt through all of them."""
    one, other = (np.full((2, 3), value, np.float32) for value in (1, 2))
    there, back = model(tmp_path / "there", {"w": one}), model(tmp_path / "back", {"w": other})
    flyweight.create_delta(there, back, tmp_path / "1.wdelta", strategy=strategy, **STRATEGIES[strategy])  # type: ignore[arg-type]
    flyweight.apply_delta(there, [tmp_path / "1.wdelta"], tmp_path / "made")
    flyweight.create_delta(tmp_path / "made", there, tmp_path / "2.wdelta")
    places = [tmp_path / "1.wdelta", tmp_path / "2.wdelta"] * (MAX_CHAIN // 2)
    with flyweight.open(there, deltas=places) as chain:
        assert chain["w"].tobytes() == one.tobytes()
    with pytest.raises(LimitError, match="squash"):
        flyweight.open(there, deltas=[*places, places[0]])


@pytest.mark.parametrize("by_path", [False, True])
def test_f32_of_a_chain_of_which_only_the_last_step_is_f32(tmp_path: Path, by_path: bool) -> None:
    """Digests are of what is stored: a delta on a lossy one is on its rounded sums."""
    base = model(tmp_path / "base", {"w": RNG.standard_normal((8, 16)).astype(ml_dtypes.bfloat16), "v": np.ones(3, np.float16)})
    below, places = base, list[Path]()
    for number in range(2):
        with flyweight.open(below) as opened:
            tensors = {name: (opened[name].astype(np.float32) * 1.01).astype(opened[name].dtype) for name in opened}
        places.append(tmp_path / f"{number}.wdelta")
        flyweight.create_delta(below, model(tmp_path / f"tuned{number}", tensors), places[-1], strategy="int4")
        below = places[-1]
    start, deltas = (places[0], places[1:]) if by_path else (base, places)
    flyweight.apply_delta(start, deltas, tmp_path / "wide", dtype="f32")
    flyweight.apply_delta(start, deltas, tmp_path / "narrow")
    with flyweight.open(tmp_path / "wide") as wide, flyweight.open(tmp_path / "narrow") as narrow:
        for name in narrow:
            assert wide[name].dtype == np.float32
            assert wide[name].astype(narrow[name].dtype).tobytes() == narrow[name].tobytes()


@pytest.mark.parametrize("kind", PUBLIC)
def test_tensors_that_a_public_file_does_not_name_are_the_base(tmp_path: Path, kind: str) -> None:
    base = write_files(tmp_path / "base", BASE)
    (tmp_path / NAME).write_bytes(PUBLIC[kind])
    with flyweight.open(base, deltas=[tmp_path / NAME]) as opened:
        assert set(opened) == set(BASE_TENSORS)
        differ = [
            name for name, array in BASE_TENSORS.items() if opened[name].tobytes() != np.ascontiguousarray(array).tobytes()
        ]
        assert len(differ) == 1


MEASURED = """
import json, re, sys
import numpy, blake3, flyweight
from flyweight.pipeline.deltas import applying, creating
from flyweight.codecs import entropy_coded
base, tuned, delta, out, strategy = sys.argv[1:]
def peak():  # of this program: what getrusage says is of the process, and begins with the peak of its parent
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
before = peak()
flyweight.create_delta(base, tuned, delta, strategy=strategy)
flyweight.apply_delta(base, [delta], out)
print(json.dumps(peak() - before))
"""
SMALL, LARGE = 16 << 20, 64 << 20
MOST = 256 << 20


def measured(*arguments: object) -> int:
    done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, arguments)], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize("strategy", ["exact", "int4"])
def test_memory_does_not_grow_with_a_tensor(tmp_path: Path, strategy: str) -> None:
    """The peak of making and applying a tensor of bf16, above the interpreter. One that is 48 MB larger takes less than 32 MB
    more: that much may be in the hands of threads."""
    peaks = {}
    for size in (SMALL, LARGE):
        root = tmp_path / str(size)
        some = (RNG.standard_normal((1024, 1024), np.float32) * 0.02).astype(ml_dtypes.bfloat16)
        values = np.tile(some, (size >> 21, 1))
        base = model(root / "base", {"w": values})
        values.view(np.uint16)[::3] ^= RNG.integers(0, 4, 1024, np.uint16)
        tuned = model(root / "tuned", {"w": values})
        peaks[size] = measured(base, tuned, root / NAME, root / "out", strategy)
    assert peaks[LARGE] <= MOST, peaks
    assert peaks[LARGE] - peaks[SMALL] <= 32 << 20, peaks
