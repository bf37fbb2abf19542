"""Hostile Core ML packages through every verb that reads a model: their exit code, no traceback, nothing written."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.hostile_coreml import HOSTILE
from support.command_line import flyweight as run
from support.coreml_files import (
    F16,
    MODEL,
    SOUND,
    WEIGHTS,
    Forms,
    blob_value,
    const,
    function,
    model,
    of_every_form,
    package,
    record,
    used,
)
from support.damage import check_refusals
from support.fuzz_cases import Case
from support.toys import write_files

CASES = {name: case for name, case in HOSTILE.items() if case.nbytes < 1 << 20}


def verbs(package: str, whole: str, out: Path) -> dict[str, list[str]]:
    return {
        "inspect": ["inspect", package, "--json"],
        "verify": ["verify", package],
        "diff": ["diff", package, whole],
        "diff, second": ["diff", whole, package, "--json"],
        "to coreml": ["convert", package, str(out / "x.mlpackage"), "--to", "coreml", "--quant", "lut4", "-q"],
        "to safetensors": ["convert", package, str(out / "x.safetensors"), "-q"],
        "dry run": ["convert", package, str(out / "dry.safetensors"), "--dtype", "f32", "--dry-run"],
        "extract": ["extract", package, "files", str(out / "files")],
        "run": ["run", package, "ab", "--raw", "--max-tokens", "1"],
        "delta": ["delta", "create", whole, package, str(out / "x.wdelta"), "-q"],
        "plan": ["ane", "plan", package, "--target", "M1"],
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_verb_refuses_it(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = case.write(tmp_path), tmp_path / "out"
    whole = write_files(tmp_path / "whole", of_every_form())
    out.mkdir()
    monkeypatch.chdir(out)
    check_refusals(case, verbs(str(path), str(whole), out), tmp_path, out)


@pytest.mark.parametrize("name", SOUND)
def test_the_verbs_take_what_is_sound(name: str, tmp_path: Path) -> None:
    """So the exit codes above come from the files. No package is a model that runs, and not every form can become lut4."""
    path, out = write_files(tmp_path / "x.mlpackage", SOUND[name]), tmp_path / "out"
    out.mkdir()
    codes = {verb: run(*a).code for verb, a in verbs(str(path), str(path), out).items()}
    refused = {verb: code for verb, code in codes.items() if code}
    assert refused.pop("run") == 4
    assert refused in ({}, {"to coreml": 4}), codes
    assert not refused or name not in ("of nested blocks", "of lut of 4 bits")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
from flyweight import cli
sys.argv = ["flyweight", *sys.argv[1:]]
cli.main()
"""


def claims_3_gib() -> dict[str, bytes]:
    """A constant of 3 GiB, by its type and by its record, in a weight file of 128 bytes."""
    raw = struct.pack("<II56x", 1, 2) + record(1, 3 << 30, 128)
    return package(model({"main": function([const("w", blob_value(F16, (3 << 29,), 64), F16, (3 << 29,)), used("w")])}), raw)


def stands_for_3_gib() -> dict[str, bytes]:
    """Zeros of a mask without values: few bytes that stand for many; the mask itself is not there."""
    forms = Forms()
    mask = blob_value(37, (1 << 18, 1 << 13), forms.file.add(37, 8, b"\0"))
    values = blob_value(F16, (0,), forms.file.add(F16, 0, b""))
    made = forms.dense("sparse_to_dense", {"nonzero_data": values, "mask": mask}, shape=(1 << 18, 1 << 13))
    return package(model({"main": function([made, used("w")])}), forms.file)


@pytest.mark.parametrize("files", [claims_3_gib(), stands_for_3_gib()], ids=["claims", "stands"])
@pytest.mark.parametrize("verb", ["inspect", "verify", "to coreml", "to safetensors", "plan"])
def test_gigabytes_in_few_bytes(files: dict[str, bytes], verb: str, tmp_path: Path) -> None:
    """In 600 MB of address space: refused for what the file is, not for want of memory."""
    assert len(files[MODEL]) + len(files[WEIGHTS]) < 1024
    path, out = write_files(tmp_path / "x.mlpackage", files), tmp_path / "out"
    out.mkdir()
    arguments = verbs(str(path), str(path), out)[verb]
    done = subprocess.run([sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "E_PAST_END" in done.stderr + done.stdout or "E_SIZE" in done.stderr + done.stdout
    assert os.listdir(out) == []
