"""Four bits beside eight in one npy-dir: what is added, who sees it when, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import flyweight
from flyweight.cli import cli
from flyweight.containers import container_named
from flyweight.foundation.errors import OutputError, UnsupportedError
from flyweight.pipeline.adding import add_form
from flyweight.sources.bundle import PathBundle, open_bundle
from support.toys import write_toy_llama

FORMS = ["int4", "int4-g64", "int4-legacy"]
SENTINEL = ".squish_int4_ready"


@pytest.fixture(scope="module")
def eights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("eights")
    flyweight.convert(write_toy_llama(root / "toy"), root / "int8", to="npy_dir", quant="int8")
    return root / "int8"


@pytest.fixture
def model(eights: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(eights, tmp_path / "model"))


def codecs(path: Path) -> dict[str, str]:
    with flyweight.open(path) as opened:
        return {name: str(entry.codec) for name, entry in opened.manifest.entries.items()}


@pytest.mark.parametrize("form", FORMS)
def test_the_added_form_is_what_a_conversion_of_the_eights_gives(eights: Path, model: Path, tmp_path: Path, form: str) -> None:
    report = add_form(model, form)
    flyweight.convert(eights, tmp_path / "straight", to="npy_dir", quant=form)
    assert flyweight.diff(model, tmp_path / "straight").identical
    assert codecs(model) == codecs(tmp_path / "straight")
    assert len(report.tensors) == sum("bits=8" in codec for codec in codecs(eights).values())
    assert 0 < report.relative_error < 0.2
    assert flyweight.verify(model, strict=True).ok
    assert not [name for name in os.listdir(model) if ".partial" in name]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_that_was_there_changes_and_without_the_sentinel_it_counts(eights: Path, model: Path, form: str) -> None:
    add_form(model, form)
    for file in (f for f in eights.rglob("*") if f.is_file() and f.name != "flyweight.json"):
        assert (model / file.relative_to(eights)).read_bytes() == file.read_bytes()
    (model / SENTINEL).unlink()
    assert flyweight.diff(model, eights).identical
    assert flyweight.verify(model).ok
    assert [finding.code for finding in flyweight.verify(model, strict=True).findings] == ["E_UNREADY"]


def test_the_record_names_both_forms_and_every_new_file(model: Path) -> None:
    add_form(model, "int4-g64")
    record = json.loads((model / "flyweight.json").read_text())
    about = record["tensors"]["model.layers.0.mlp.gate_proj.weight"]
    assert (about["codec"]["params"]["bits"], about["added"]["params"]["bits"]) == (8, 4)
    assert "added" not in record["tensors"]["model.norm.weight"]
    arrays = {f"tensors/{name}" for name in os.listdir(model / "tensors")} - {"tensors/.manifest_ready"}
    assert arrays <= record["files"].keys()
    (model / "tensors" / "model__layers__0__mlp__gate_proj__weight__q4a.npy").unlink()
    assert not flyweight.verify(model).ok


def test_a_directory_of_the_public_tool_has_no_record_and_gets_none(model: Path) -> None:
    (model / "flyweight.json").unlink()
    add_form(model, "int4")
    assert not (model / "flyweight.json").exists()
    assert any("bits=4" in codec for codec in codecs(model).values())


def test_four_bits_that_another_tool_added_need_not_be_recorded(eights: Path, model: Path, tmp_path: Path) -> None:
    """The record knows the eight bits, which are still there; what it does not know it cannot contradict."""
    flyweight.convert(eights, tmp_path / "fours", to="npy_dir", quant="int4-legacy")
    for file in (tmp_path / "fours" / "tensors").glob("*4.npy"):
        shutil.copy(file, model / "tensors")
    assert flyweight.diff(model, eights).identical
    (model / SENTINEL).touch()
    assert flyweight.diff(model, tmp_path / "fours").identical


def test_whoever_reads_meanwhile_has_the_old_values_or_the_new(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader may have listed the directory before any step and read its files after any later one."""
    container = container_named("npy_dir")
    listings: list[list[str]] = []
    seen: list[list[bool]] = []

    def look() -> None:
        listings.append(list(open_bundle(model)))
        found = []
        for names in listings:
            bundle = PathBundle(model, names, name="model", is_directory=True)
            manifest = container.parse(bundle)
            found.append(all("bits=8" in str(e.codec) for e in manifest.entries.values() if e.codec.name == "affine"))
            bundle.close()
        seen.append(found)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def then(*args: Any, **kwargs: Any) -> Any:
            look()
            return call(*args, **kwargs)

        return then

    for name in ("rename", "unlink"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    add_form(model, "int4", jobs=1)
    monkeypatch.undo()
    look()
    assert len(seen) > 20
    assert all(found == sorted(found, reverse=True) for found in seen), "who lists later never has older values"
    assert (seen[-1][0], seen[-1][-1]) == (True, False)


def test_what_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="E_QUANT"):
        add_form(model, "int3")
    add_form(model, "int4")
    again = add_form(model, "int4")
    assert (again.tensors, again.notes) == ((), ("the model already has int4 weights",))
    for form in ("int4-g64", "int4-legacy"):
        with pytest.raises(OutputError, match="E_EXISTS"):
            add_form(model, form)
    flyweight.convert(model, tmp_path / "fours", to="npy_dir")
    with pytest.raises(UnsupportedError, match="E_NOTHING"):
        add_form(tmp_path / "fours", "int4")
    with pytest.raises(UnsupportedError, match="E_FORMAT"):
        add_form(write_toy_llama(tmp_path / "toy"), "int4")


def test_arrays_that_someone_left_never_count(model: Path) -> None:
    left = model / "tensors" / "model__embed_tokens__weight__q4a.npy"
    left.write_bytes(b"half an array")
    add_form(model, "int4-legacy")
    assert not left.exists()
    assert flyweight.verify(model, strict=True).ok


def test_a_sentinel_that_was_there_too_early_is_taken_away_first(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / SENTINEL).touch()
    rename, ready = os.rename, []

    def watched(old: str, new: str, **where: int) -> None:
        ready.append((model / SENTINEL).exists())
        rename(old, new, **where)

    monkeypatch.setattr(os, "rename", watched)
    add_form(model, "int4")
    assert ready
    assert not any(ready)
    assert (model / SENTINEL).exists()


def test_command_line(model: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, ["convert", *arguments])

    before = sorted(os.listdir(model / "tensors"))
    planned = run("--add", "int4-g64", str(model), "--dry-run", "--json")
    assert {tensor["bits_per_weight"] for tensor in json.loads(planned.stdout)["tensors"]} == {4.5, 4.6667}
    assert sorted(os.listdir(model / "tensors")) == before
    for wrong in (["--to", "gguf"], ["elsewhere"], ["--quant", "int4"], ["--force"]):
        assert run("--add", "int4", str(model), *wrong).exit_code == 2
    assert run(str(model)).exit_code == 2
    done = run("--add", "int4-g64", str(model), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["relative_error"] > 0
