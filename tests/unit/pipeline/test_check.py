"""A conversion that is checked says what it costs, on text that nothing was calibrated on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flyweight
from support.command_line import flyweight as command
from support.toys import toy_llama_files, write_files


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("checks") / "toy", toy_llama_files(dtype=np.float32))


def test_what_a_result_costs_is_in_the_report(toy: Path, tmp_path: Path) -> None:
    found = {}
    for quant in ("q8_0", "q4_0", "keep"):
        report = flyweight.convert(toy, tmp_path / f"{quant}.gguf", quant=quant, check=True)
        assert report.check is not None
        assert not report.check["reason"]
        found[quant] = report.check["kl"]["value"]
    assert found["keep"] < 1e-6 < found["q8_0"] < found["q4_0"]


def test_calibrating_checks(toy: Path, tmp_path: Path) -> None:
    ran = command("convert", toy, tmp_path / "out.gguf", "--quant", "q8_0", "--calibrate", "--json")
    assert ran.code == 0
    assert json.loads(ran.stdout)["check"]["same_model"]
    ran = command("convert", toy, tmp_path / "other.gguf", "--quant", "q8_0", "--calibrate", "--no-check", "--json")
    assert json.loads(ran.stdout)["check"] is None


def test_what_cannot_run_is_not_checked(toy: Path, tmp_path: Path) -> None:
    report = flyweight.convert(toy, tmp_path / "out.safetensors", check=True)
    assert report.check is not None
    assert "config.json" in report.check["reason"]
    assert any("was not checked" in note for note in report.notes)
    with pytest.raises(ValueError, match="deltas"):
        flyweight.convert(toy, tmp_path / "x.gguf", deltas=[toy], check=True)
