"""A conversion that is checked says what it costs, on text that nothing was calibrated on: in its report and its metadata."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.foundation.accuracy_gate import Interval
from flyweight.foundation.manifest import Typed
from flyweight.foundation.source_check import KEY, RESERVED, SourceCheck
from support.command_line import flyweight as command
from support.toys import toy_llama_files, write_files


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("checks") / "toy", toy_llama_files(dtype=np.float32))


def recorded(path: Path) -> SourceCheck | None:
    with flyweight.open(path) as checkpoint:
        return SourceCheck.recorded(checkpoint.manifest.metadata)


def test_what_a_result_costs_is_in_the_report(toy: Path, tmp_path: Path) -> None:
    found = {}
    for quant in ("q8_0", "q4_0", "keep"):
        report = flyweight.convert(toy, tmp_path / f"{quant}.gguf", quant=quant, check=True)
        assert report.check is not None
        assert not report.check["reason"]
        found[quant] = report.check["kl"]["value"]
        ratio = report.check["perplexity"]["value"] / report.check["source_perplexity"]["value"]
        assert ratio == pytest.approx(report.check["perplexity_ratio"]["value"])
    assert found["keep"] < 1e-6 < found["q8_0"] < found["q4_0"]


OUTPUTS = {
    "out.gguf": {"quant": "q4_0"},
    "parts": {"to": "gguf", "quant": "q4_0", "shard_bytes": 20_000},
    "hf": {"to": "hf", "quant": "int4"},
    "shards": {"to": "hf", "dtype": "f16", "shard_bytes": 30_000},
    "mlx": {"to": "mlx", "quant": "int4"},
    "npy": {"to": "npy_dir", "quant": "int8"},
    "out.squizd": {"quant": "int4"},
    "uqff": {"to": "uqff", "quant": "q8_0"},
    "out.safetensors": {"quant": "int4"},
    "out.mlpackage": {"to": "coreml", "quant": "lut4"},
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_a_result_costs_is_in_its_metadata(toy: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    report = flyweight.convert(toy, path, check=True, **OUTPUTS[name])
    assert report.check is not None
    found = recorded(path)
    assert found is not None
    said = found.as_json()
    assert said["reason"] == report.check["reason"]
    assert said["source"] == toy.name
    assert said["predicted"] == report.check["predicted"]
    for figure in ("kl", "perplexity", "source_perplexity", "perplexity_ratio"):
        assert said[figure] == (report.check[figure] and pytest.approx(report.check[figure], rel=1e-5))
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) == report.nbytes
    assert flyweight.verify(path).ok
    plain = tmp_path / "plain" / name
    plain.parent.mkdir()
    flyweight.convert(toy, plain, **OUTPUTS[name])
    assert flyweight.diff(path, plain).identical


def test_a_record_is_of_these_values_alone(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "hf", to="hf", dtype="f16", check=True)
    first = recorded(tmp_path / "hf")
    assert first is not None
    flyweight.convert(tmp_path / "hf", tmp_path / "same", to="mlx")
    assert recorded(tmp_path / "same") == first
    flyweight.convert(tmp_path / "hf", tmp_path / "other", to="hf", quant="int4")
    assert recorded(tmp_path / "other") is None
    flyweight.convert(tmp_path / "hf", tmp_path / "checked", to="hf", quant="int4", check=True)
    again = recorded(tmp_path / "checked")
    assert again is not None
    assert again.source == "hf"


def test_a_form_that_is_added_has_not_been_checked(toy: Path, tmp_path: Path) -> None:
    place = tmp_path / "npy"
    flyweight.convert(toy, place, to="npy_dir", quant="int8", check=True)
    assert recorded(place) is not None
    assert command("convert", "--add", "int4", place).code == 0
    assert recorded(place) is None


def test_inspect_shows_what_a_result_costs(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "out.gguf", quant="q4_0", check=True)
    shown = command("inspect", tmp_path / "out.gguf")
    assert b"KL 0.0" in shown.stdout
    assert b"compared with toy" in shown.stdout
    facts = json.loads(command("inspect", tmp_path / "out.gguf", "--json").stdout)["facts"]
    assert facts["check"]["same_model"]


def test_a_package_with_a_program_of_its_own_has_no_place(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "first.mlpackage", to="coreml", quant="none")
    report = flyweight.convert(tmp_path / "first.mlpackage", tmp_path / "out.mlpackage", to="coreml", quant="int8", check=True)
    assert report.check is not None
    assert (recorded(tmp_path / "out.mlpackage") is None) == any("has no place for it" in note for note in report.notes)


def test_calibrating_checks(toy: Path, tmp_path: Path) -> None:
    ran = command("convert", toy, tmp_path / "out.gguf", "--quant", "q8_0", "--calibrate", "--json")
    assert ran.code == 0
    assert json.loads(ran.stdout)["check"]["same_model"]
    assert recorded(tmp_path / "out.gguf") is not None
    ran = command("convert", toy, tmp_path / "other.gguf", "--quant", "q8_0", "--calibrate", "--no-check", "--json")
    assert json.loads(ran.stdout)["check"] is None
    assert recorded(tmp_path / "other.gguf") is None


def test_what_cannot_run_is_not_checked(toy: Path, tmp_path: Path) -> None:
    report = flyweight.convert(toy, tmp_path / "out.safetensors", check=True)
    assert report.check is not None
    assert "config.json" in report.check["reason"]
    assert any("was not checked" in note for note in report.notes)
    with pytest.raises(ValueError, match="deltas"):
        flyweight.convert(toy, tmp_path / "x.gguf", deltas=[toy], check=True)


def test_a_plan_is_not_checked(toy: Path, tmp_path: Path) -> None:
    ran = command("convert", toy, tmp_path / "x.gguf", "--plan-out", tmp_path / "plan.json", "--check")
    assert ran.code == 2
    assert b"--plan-out" in ran.stderr
    assert not (tmp_path / "plan.json").exists()


FOUND = SourceCheck(
    "a model.gguf", Interval(0.1, 0.09, 0.11), Interval(12.5, 12, 13), Interval(12, 11, 13), Interval(1.04, 1.03, 1.05), 2032
)


@pytest.mark.parametrize(
    "check",
    [
        FOUND,
        SourceCheck("x" * 96, reason="there is no config.json; a=b"),
        SourceCheck("m", *[Interval(1e300, -1e-300, float("inf"))] * 4, predicted=1 << 40),
    ],
)
def test_a_record_is_read_back(check: SourceCheck) -> None:
    assert SourceCheck.recorded({KEY: check.typed()}) == check
    assert len(check.typed().value) == len(RESERVED.value)


@pytest.mark.parametrize("name", ["é" * 300, '"\\\n\0' * 80, "\udcff" * 80, "%" * 90])
def test_any_name_fits(name: str) -> None:
    typed = SourceCheck(name, reason=name).typed()
    assert len(typed.value) == len(RESERVED.value)
    assert set(typed.value).isdisjoint('"\\')
    assert typed.value.isascii()
    assert typed.value.isprintable()
    assert SourceCheck.recorded({KEY: typed}) is not None


@pytest.mark.parametrize(
    "typed",
    [
        Typed("u32", 7),
        RESERVED,
        Typed("str", ""),
        Typed("str", FOUND.typed().value.replace("kl=", "lk=")),
        Typed("str", FOUND.typed().value.replace("tokens=", "tokens=x")),
        Typed("str", FOUND.typed().value.replace("kl_low=0.09", "kl_low=nan")),
        Typed("str", FOUND.typed().value + " "),
    ],
)
def test_what_is_no_record_is_none(typed: Typed) -> None:
    assert SourceCheck.recorded({KEY: typed}) is None
