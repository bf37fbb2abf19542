"""What a user is told of a UQFF: which file to choose, why layers have no names, and what is in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import flyweight
from flyweight.foundation.errors import UnsupportedError
from support import ROOT
from support.command_line import flyweight as run
from support.toys import write_files
from support.uqff_files import gguf, named_directory, version

OLD = ROOT / "tests" / "golden" / "uqff" / "0.1.3" / "bias"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory with one quantization."""
    folder = tmp_path / "old"
    shutil.copytree(
        OLD, folder, ignore=lambda _, names: [name for name in names if name.endswith(".uqff") and name != "q4_0-0.uqff"]
    )
    return folder


def test_choice_names_a_path_that_opens() -> None:
    with pytest.raises(UnsupportedError) as caught:
        flyweight.open(OLD)
    assert caught.value.code == "E_CHOICE"
    assert caught.value.hint is not None
    with flyweight.open(caught.value.hint.split()[-1]) as checkpoint:
        assert "lm_head.weight" in checkpoint


def test_layers_without_names_say_what_is_missing(old: Path, tmp_path: Path) -> None:
    (old / "config.json").unlink()
    with pytest.raises(UnsupportedError) as caught:
        flyweight.convert(old, tmp_path / "new", to="uqff")
    assert caught.value.code == "E_DIALECT"
    assert "config.json" in str(caught.value)


def test_a_model_converted_without_its_residual_is_noticed(old: Path, tmp_path: Path) -> None:
    (old / "residual.safetensors").unlink()
    flyweight.convert(old, tmp_path / "new", to="uqff")
    assert b"model.embed_tokens.weight" in run("verify", tmp_path / "new", "--json").stdout


def test_an_unknown_order_is_a_warning(old: Path) -> None:
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    assert b"'unheard_of'" in run("verify", old, "--json").stdout


def test_inspect_prints_names_as_they_are(old: Path) -> None:
    shown = run("inspect", old).stdout.decode()
    assert "q4_0 8" in shown
    assert "norms and other vectors 3" in shown


@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_a_refusal_names_the_file_and_a_remedy(verb: str, tmp_path: Path) -> None:
    newer = {**version(1, 3, 0), **gguf("lm_head")}
    incomplete = {key: value for key, value in {**version(), **gguf("lm_head")}.items() if not key.endswith(".shape")}
    for name, tensors, code in (("newer", newer, "E_VERSION"), ("incomplete", incomplete, "E_LAYER")):
        folder = write_files(tmp_path / name, named_directory(tensors))
        told = run(verb, str(folder), "--json").error()
        assert (told["code"], told["file"]) == (code, str(folder))
        assert told["hint"]
