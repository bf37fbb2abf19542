"""Hostile deltas through every verb that takes one: an exit code that is documented, no traceback, nothing written."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.hostile_wdelta import HOSTILE
from support.command_line import flyweight as run
from support.fuzz_cases import Case

MAX_ADDRESSES = 600 << 20
"""Of a process that does nothing 330 MB are mapped: the interpreter, NumPy, and stacks and heaps of threads."""


def verbs(case: Case, path: Path, out: Path) -> dict[str, list[str]]:
    """On its base, or, if it is to be found by the delta, alone."""
    delta, base = str(path), [str(path.parent / case.base)] if case.base else []
    return {
        "squash": ["delta", "squash", *base, delta, str(out / "squashed.wdelta")],
        "run": ["run", *base, *(["--delta"] if base else []), delta, "ab", "--raw", "--max-tokens", "1"],
        "verify": ["delta", "verify", delta, *(["--base", *base] if base else [])],
        "inspect": ["delta", "inspect", delta, "--tensors"],
        "log": ["delta", "log", delta],
    } | ({"apply": ["delta", "apply", *base, delta, str(out / "applied")]} if base else {})


REFUSES = ("apply", "squash", "run")


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_every_verb_refuses_a_hostile_delta(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = case.write(tmp_path), tmp_path / "out"
    out.mkdir()
    before = sorted(map(str, tmp_path.rglob("*")))
    monkeypatch.chdir(out)
    for verb, arguments in verbs(case, path, out).items():
        done = run(*arguments)
        code, said = done.code, done.said
        assert "Traceback" not in said, said
        if verb == "verify" and case.base:
            assert (code, case.code in said) == (case.exit_code, True), (code, said)
        else:
            assert code in ((1, 3, 4) if verb in REFUSES else (0, 1, 3, 4)), (verb, code, said)
    assert os.listdir(out) == []
    assert sorted(map(str, tmp_path.rglob("*"))) == before


@pytest.mark.parametrize("name", ["336 bytes that stand for 3 GiB, sparse", "336 bytes that stand for 3 GiB, quantized"])
def test_little_memory_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    case = HOSTILE[name]
    path = case.write(tmp_path)
    assert path.stat().st_size < 512
    for verb, arguments in verbs(case, path, tmp_path).items():
        done = subprocess.run(
            [sys.executable, "-m", "flyweight", *arguments], capture_output=True, text=True, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, MAX_ADDRESSES)),
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        wanted = (case.exit_code,) if verb in (*REFUSES, "verify") else (0, 3)
        assert done.returncode in wanted, (verb, done.returncode, done.stderr)
