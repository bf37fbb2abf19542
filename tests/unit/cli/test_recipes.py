"""`flyweight recipes`, and what `convert` says of names: suggestions, notes before the work, what stays plain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import flyweight
from flyweight.cli import cli
from flyweight.foundation.errors import UnsupportedError
from support.toys import write_toy_llama


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("recipes") / "toy")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def refusal(*arguments: object) -> str:
    error = run(*arguments).exception
    assert isinstance(error, UnsupportedError)
    return str(error)


def test_the_list_has_names_bits_and_formats() -> None:
    listed = {each["name"]: each for each in json.loads(run("recipes", "ls", "--json").stdout)["recipes"]}
    assert listed["q4_k_m"]["bits_per_weight"] == pytest.approx(4.89, abs=0.02)  # what llama.cpp says of Llama 3 8B
    assert {"gguf", "hf", "safetensors"} <= set(listed["q4_k_m"]["formats"])
    assert "mlx" not in listed["q4_k_m"]["formats"]
    assert listed["mixed_4_6"]["formats"] == ["mlx"]
    assert listed["bf16"]["bits_per_weight"] == 16
    assert listed["keep"]["bits_per_weight"] is None
    of_mlx = {each["name"] for each in json.loads(run("recipes", "ls", "--to", "mlx", "--json").stdout)["recipes"]}
    assert {"4bit", "mixed_2_6", "int4"} <= of_mlx
    assert "q4_k_m" not in of_mlx


def test_what_is_shown_is_a_recipe(toy: Path, tmp_path: Path) -> None:
    shown = run("recipes", "show", "Q4_K_M")
    assert shown.exit_code == 0
    assert 'layers = "first 1/8, last 1/8, every 3rd"' in shown.stdout
    recipe = tmp_path / "x.toml"
    recipe.write_text(shown.stdout)
    for name, option, value in (("a", "--quant", "q4_k_m"), ("b", "--recipe", recipe)):
        assert run("convert", toy, tmp_path / f"{name}.gguf", option, value).exit_code == 0
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    with flyweight.open(tmp_path / "b.gguf") as made:
        assert made.manifest.metadata["general.file_type"].value == 15
    assert json.loads(run("recipes", "show", "int2", "--to", "squizd", "--json").stdout)["protect"] is True


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("q4km", "q4_k_m"), ("Q4_K_L", "q4_k_m"), ("int4g32", "int4-g32"), ("fp4", "mxfp4"), ("q8", "q8_0"), ("bfloat", None)],
)
def test_an_unknown_name_suggests_the_nearest(typed: str, meant: str | None, toy: Path, tmp_path: Path) -> None:
    said = refusal("convert", toy, tmp_path / "x.gguf", "--quant", typed)
    assert f"no quantization named '{typed}'" in said
    assert meant is None or meant in said.partition("did you mean")[2]
    assert "flyweight recipes ls --to gguf" in said


@pytest.mark.parametrize("typed", ["gguf", ".gguf", "mlx"])
def test_a_format_is_no_quantization(typed: str, toy: Path, tmp_path: Path) -> None:
    assert f"give it with --to {typed.lstrip('.')}" in refusal("convert", toy, tmp_path / "x.gguf", "--quant", typed)


def test_a_name_that_a_format_cannot_store(toy: Path, tmp_path: Path) -> None:
    said = refusal("convert", toy, tmp_path / "x", "--to", "mlx", "--quant", "q4_k_m")
    assert "mlx cannot store q4_k" in said
    assert "mixed_4_6" in said
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("typed", ["bfloat16", "torch.bfloat16", "BF16", "bf16"])
def test_names_of_element_types(typed: str, toy: Path, tmp_path: Path) -> None:
    for number, option in enumerate(("--dtype", "--quant")):
        planned = run("convert", toy, tmp_path / f"{number}.gguf", option, typed, "--dry-run", "--json", "-q")
        kinds = {step["dtype"] for step in json.loads(planned.stdout)["tensors"] if len(step["shape"]) > 1}
        assert kinds == {"bf16"}, option


def test_what_must_be_decoded_is_said_before_the_work(toy: Path, tmp_path: Path) -> None:
    assert run("convert", toy, tmp_path / "q.gguf", "--quant", "iq4_nl", "-q").exit_code == 0
    planned = run("convert", tmp_path / "q.gguf", tmp_path / "x", "--to", "mlx", "--dry-run", "--json")
    said = [note for note in json.loads(planned.stdout)["notes"] if "times the source" in note]
    assert len(said) == 1
    assert "decoded from iq4_nl" in said[0]
    assert "to f16" in said[0]
    assert "--quant 4bit" in said[0]
    assert said[0] in planned.stderr
    heard: list[str] = []

    def notify(notes: tuple[str, ...]) -> None:
        heard.extend(notes)
        assert not (tmp_path / "x").exists()

    flyweight.convert(tmp_path / "q.gguf", tmp_path / "x", to="mlx", notify=notify)
    assert said[0] in heard
    with flyweight.open(tmp_path / "x") as made:
        assert made.manifest.entries["model.layers.0.mlp.up_proj.weight"].spec.dtype.label == "f16"
    wide = run("convert", tmp_path / "q.gguf", tmp_path / "wide", "--to", "hf", "--dtype", "f32", "--json")
    assert not [note for note in json.loads(wide.stdout)["notes"] if "times the source" in note]
    assert flyweight.diff(tmp_path / "q.gguf", tmp_path / "wide").identical
