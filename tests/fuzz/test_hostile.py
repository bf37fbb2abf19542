"""Every hostile file of every corpus ends in its own error: quickly, in little memory, with nothing written."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from flyweight import cli
from flyweight.checkpoint import open_checkpoint
from flyweight.foundation.errors import FlyweightError, MalformedError, ParentError, UnsupportedError
from flyweight.statistics_files.known_files import open_statistics
from support.fuzz_cases import Case

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("hostile_*.py"))
CORPORA: dict[str, dict[str, Case]] = {
    name.removeprefix("hostile_"): importlib.import_module(f"fuzz.{name}").HOSTILE for name in MODULES
}
CASES = [pytest.param(case, id=f"{form}: {name}") for form, cases in CORPORA.items() for name, case in cases.items()]

ATLEAST = {
    "safetensors": 25,
    "hf": 12,
    "gguf": 30,
    "mlx": 12,
    "squizd": 60,
    "npy_dir": 30,
    "uqff": 60,
    "uqff_blob": 60,
    "wdelta": 150,
    "coreml": 200,
    "statistics": 45,
}
KINDS = {1: ParentError, 3: MalformedError, 4: UnsupportedError}
"""Errors by exit code."""


def cpu_budget_s(case: Case) -> float:
    """100 ms, and for large files one second per 10 MB of header."""
    return 0.1 + case.nbytes / 10e6


_LOOP_S = 0.004
"""What the loop of `slowness` takes where the budget is as it says."""


def slowness() -> float:
    """How many times as long a loop takes here and now: processors differ, and so do their neighbours. No less than 1."""
    start, total = time.process_time(), 0
    for number in range(100_000):
        total += number
    return max(1.0, (time.process_time() - start) / _LOOP_S)


def memory_budget(case: Case) -> int:
    return 32 * 2**20 + 16 * case.nbytes


def opened(case: Case, path: Path) -> None:
    """As a model; as a delta on its base, with all that it makes read; as statistics."""
    if case.is_statistics:
        open_statistics(path).close()
        return
    if not case.base:
        open_checkpoint(path).close()
        return
    with open_checkpoint(path.parent / case.base, deltas=[path], checks_digests=True) as result:
        for name in result:
            result.encoded(name)


def source_of(case: Case, path: Path) -> list[str]:
    """The arguments of a conversion that reads it."""
    option = "--stats" if case.is_statistics else "--delta"
    return [str(path.parent / case.base), option, str(path)] if case.base else [str(path)]


def test_corpora_are_large_enough() -> None:
    assert {form: len(CORPORA[form]) >= least for form, least in ATLEAST.items()} == dict.fromkeys(ATLEAST, True)


@pytest.mark.parametrize("case", CASES)
def test_hostile_file_is_refused(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(FlyweightError) as caught:
            opened(case, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    error = caught.value
    assert error.code == case.code, str(error)
    assert error.exit_code == case.exit_code
    assert isinstance(error, KINDS[case.exit_code])
    assert error.file, "the error names no file"
    assert peak <= memory_budget(case)

    # Again, warm, for the clock; the best of some tries, since machines are shared.
    spent = math.inf
    for _ in range(8):
        start = time.process_time()
        with pytest.raises(FlyweightError):
            opened(case, path)
        spent = min(spent, (time.process_time() - start) / slowness())
        if spent <= cpu_budget_s(case):
            return
    assert spent <= cpu_budget_s(case)


@pytest.mark.parametrize("case", CASES)
def test_convert_of_a_hostile_file_writes_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = case.write(tmp_path)
    destination = tmp_path / "out"
    destination.mkdir()
    target = destination / ("converted" if case.is_directory else "converted.safetensors")
    source = source_of(case, path)
    monkeypatch.setattr(sys, "argv", ["flyweight", "convert", *source, str(target)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == case.exit_code
    assert case.code in capsys.readouterr().err
    assert os.listdir(destination) == []


@pytest.mark.parametrize("form", sorted(CORPORA))
def test_convert_in_a_process_of_its_own(form: str, tmp_path: Path) -> None:
    case = next(iter(CORPORA[form].values()))
    path = case.write(tmp_path)
    target = tmp_path / "converted.safetensors"
    source = source_of(case, path)
    done = subprocess.run(
        [sys.executable, "-m", "flyweight", "convert", *source, str(target)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, target.exists()) == (case.exit_code, False), done.stderr
    assert case.code in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
