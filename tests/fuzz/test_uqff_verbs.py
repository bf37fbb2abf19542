"""Hostile UQFF files through every verb that reads a model: the exit code of their error, no traceback, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import hostile_uqff, hostile_uqff_blob
from support.command_line import flyweight as run
from support.damage import check_refusals
from support.fuzz_cases import Case
from support.toys import write_files
from support.uqff_files import blob_directory, named_directory

CASES = {
    f"{form}: {name}": case
    for form, table in (("uqff", hostile_uqff.HOSTILE), ("uqff_blob", hostile_uqff_blob.HOSTILE))
    for name, case in table.items()
    if case.nbytes < 1 << 20
}


def verbs(model: str, whole: str, out: Path) -> dict[str, list[str]]:
    return {
        "inspect": ["inspect", model, "--json"],
        "verify": ["verify", model],
        "diff": ["diff", model, whole],
        "diff, second": ["diff", whole, model, "--json"],
        "to uqff": ["convert", model, str(out / "new"), "--to", "uqff", "-q"],
        "to uqff0": ["convert", model, str(out / "old"), "--to", "uqff0", "--quant", "q8_0", "-q"],
        "to gguf": ["convert", model, str(out / "x.gguf"), "--quant", "q4_0", "-q"],
        "dry run": ["convert", model, str(out / "dry"), "--to", "npy-dir", "--dry-run"],
        "extract": ["extract", model, "files", str(out / "files")],
        "run": ["run", model, "ab", "--raw", "--max-tokens", "1"],
        "delta": ["delta", "create", whole, model, str(out / "x.wdelta"), "-q"],
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_verb_refuses_it(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = case.write(tmp_path), tmp_path / "out"
    whole = write_files(tmp_path / "whole", named_directory())
    out.mkdir()
    monkeypatch.chdir(out)
    check_refusals(case, verbs(str(model), str(whole), out), tmp_path, out)


@pytest.mark.parametrize("directory", [named_directory, blob_directory])
def test_the_verbs_take_what_is_sound(directory: object, tmp_path: Path) -> None:
    """So the exit codes above come from the files. Its layers are too small to be a model that runs."""
    model, out = write_files(tmp_path / "model", directory()), tmp_path / "out"  # type: ignore[operator]
    out.mkdir()
    codes = {verb: run(*a).code for verb, a in verbs(str(model), str(model), out).items()}
    assert {verb for verb, code in codes.items() if code} <= {"run", "to gguf", "to uqff0"}, codes
