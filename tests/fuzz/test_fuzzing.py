"""The harness of `fuzz.py`, without its coverage: every target has seeds, the corpus is replayed, a short run finds nothing,
and what is wrong would be found."""

from __future__ import annotations

import json
import random
import resource
import tracemalloc
from pathlib import Path

import pytest

from flyweight.containers import CONTAINERS
from flyweight.foundation.errors import FlyweightError
from fuzz import ledger, oracle
from fuzz.framing import Input, pack, unpack
from fuzz.mutators import bundles
from fuzz.oracle import BrokenPromiseError, limited, memory_budget
from fuzz.seeds import SEEDS, seeds
from fuzz.targets import TARGETS
from fuzz.worker import Run

CORPUS = Path(__file__).parent / "corpus"
SHORT = 300
"""Executions of a target in the tests; `make fuzz` makes many more."""


def test_every_container_is_fuzzed_from_seeds_it_reads() -> None:
    assert SEEDS.keys() == TARGETS.keys() >= set(CONTAINERS.lines)
    for name in CONTAINERS.lines:
        accepted = [given for given in seeds(name) if TARGETS[name](given).startswith("parsed")]
        assert len(accepted) >= 5, f"{name} accepts only {len(accepted)} of its seeds"


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_corpus_keep_every_promise(target: str) -> None:
    """Replayed with every allocation counted."""
    paths = sorted((CORPUS / target).glob("*"))
    assert paths, f"{target} has no corpus: `python tests/fuzz/fuzz.py {target} --grow`"
    for name, given in [
        *((path.name, unpack(path.read_bytes())) for path in paths),
        *(("a seed", seed) for seed in seeds(target)),
    ]:
        tracemalloc.start()
        try:
            TARGETS[target](given)
            peak = tracemalloc.get_traced_memory()[1]
        except Exception as error:
            raise AssertionError(f"{target}/{name}: {error!r}") from error
        finally:
            tracemalloc.stop()
        assert peak <= memory_budget(given.nbytes), (name, peak)


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run_finds_nothing(target: str) -> None:
    rng, known, outcomes = random.Random(target), seeds(target), set[str]()
    for number in range(SHORT):
        given = rng.choice(known)
        for _ in range(rng.choice((1, 1, 2, 4))):
            given = bundles.mutate(rng, given, rng.choice(known))
        try:
            with limited(given.nbytes):
                outcomes.add(TARGETS[target](given))
        except Exception as error:
            raise AssertionError(f"mutation {number} of {target}: {error!r}; {given.files!r:.2000}") from error
    if target in CONTAINERS.lines:
        assert len(outcomes) >= 15, f"mutations should reach most rules, not only {outcomes}"


def test_any_bytes_are_an_input() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        unpack(b"\x01" + rng.randbytes(rng.randrange(60)))
    for target in TARGETS:
        for given in seeds(target):
            assert unpack(pack(given.files, is_directory=given.is_directory)) == given


def wrong(given: Input) -> str:
    """A reader with one mistake of each kind."""
    data = given.files["x"]
    if data == b"untyped":
        raise KeyError("x")
    if data == b"slow":
        while True:
            pass
    if data == b"typed":
        raise FlyweightError("an error that should have been caught")
    return "read"


def test_mistakes_are_found_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "wrong", wrong)
    monkeypatch.setattr("fuzz.oracle.MAX_CPU_SECONDS", 0.1)
    run = Run({"target": "wrong", "executions": 99, "findings": str(tmp_path), "report": str(tmp_path / "report.json")})
    for data in (b"fine", b"untyped", b"slow", b"typed", b"untyped"):
        run(pack({"x": data}, is_directory=False))
    run.report()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["executions"] == 5
    assert report["codes"] == {"read": 1}
    kept = {unpack((tmp_path / name).read_bytes()).files["x"] for name in report["findings"].values()}
    assert kept == {b"untyped", b"slow", b"typed"}


def test_too_much_memory_is_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have had gigabytes, and to exceed them takes longer than an execution may."""
    monkeypatch.setattr(oracle, "MAX_CPU_SECONDS", 60.0)

    def touched(nbytes: int) -> None:
        block = bytearray(nbytes)
        block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])

    with pytest.raises(BrokenPromiseError, match="MB for 10 bytes"), limited(10):
        touched(_beyond_the_peak())


def _beyond_the_peak() -> int:
    """More than the process has ever had, and the budget on top."""
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) + 2 * memory_budget(10)


def test_the_corpus_is_small_and_the_ledger_whole() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= 2 << 20
    for row in ledger.rows():
        assert set(ledger.FIELDS) <= row.keys(), row
        assert row["executions"] > 0
