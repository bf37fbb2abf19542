"""`flyweight delta`, and `--delta` wherever a model is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flyweight as package
from flyweight.runtime import open_model
from tests.support.command_line import flyweight
from tests.support.fine_tunes import tuned, write_model
from tests.support.toys import llama_tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a fine-tune and its delta."""
    root = tmp_path_factory.mktemp("deltas")
    write_model(root / "base")
    write_model(root / "tuned", tuned(llama_tensors(), 0.05))
    done = flyweight("delta", "create", root / "base", root / "tuned", root / "d.wdelta", "--json")
    assert done.code == 0
    assert done.json()["error"] == 0
    return root


def test_apply_gives_the_fine_tune(folder: Path, tmp_path: Path) -> None:
    assert flyweight("delta", "apply", folder / "base", folder / "d.wdelta", tmp_path / "again").code == 0
    assert flyweight("diff", tmp_path / "again", folder / "tuned").code == 0
    assert flyweight("diff", folder / "base", folder / "tuned").code == 1


def test_a_delta_runs_like_the_fine_tune(folder: Path) -> None:
    """Bit for bit the same logits, whether the base is named or the delta says where it is."""
    logits = []
    for place, deltas in ((folder / "tuned", ()), (folder / "d.wdelta", ()), (folder / "base", (folder / "d.wdelta",))):
        with open_model(package.open(place, deltas=deltas)) as model:
            logits.append(model.decoder.forward([1, 5, 9, 30], model.cache(), every=True))
    assert np.array_equal(logits[0], logits[1])
    assert np.array_equal(logits[0], logits[2])
    with open_model(folder / "base") as model:
        assert not np.array_equal(logits[0], model.decoder.forward([1, 5, 9, 30], model.cache(), every=True))


def test_run_and_eval(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abc " * 300)
    asked = ("abc", "--max-tokens", 8, "--raw", "--json")
    said = {
        name: flyweight("run", *given, *asked).json()["text"]
        for name, given in {
            "tuned": (folder / "tuned",),
            "delta": (folder / "d.wdelta",),
            "base and delta": (folder / "base", "--delta", folder / "d.wdelta"),
        }.items()
    }
    assert len(set(said.values())) == 1
    measured = ("--text", tmp_path / "text", "--against", folder / "tuned", "--exact", "--kv", "f32", "--json")
    done = flyweight("eval", folder / "base", "--delta", folder / "d.wdelta", *measured)
    assert done.json()["kl_mean"]["value"] == 0


def test_other_verbs_take_deltas(folder: Path, tmp_path: Path) -> None:
    given = (folder / "base", "--delta", folder / "d.wdelta")
    assert flyweight("diff", folder / "base", folder / "tuned", "--delta", folder / "d.wdelta").code == 0
    assert flyweight("diff", folder / "d.wdelta", folder / "tuned").code == 0
    assert flyweight("verify", *given).code == 0
    assert flyweight("verify", folder / "d.wdelta").code == 0
    assert str(folder / "d.wdelta") in flyweight("inspect", *given, "--json").json()["facts"]["deltas"]
    assert (
        flyweight("convert", folder / "base", tmp_path / "a.gguf", "--delta", folder / "d.wdelta", "--quant", "q8_0").code == 0
    )
    assert flyweight("convert", folder / "tuned", tmp_path / "b.gguf", "--quant", "q8_0").code == 0
    assert flyweight("diff", tmp_path / "a.gguf", tmp_path / "b.gguf").code == 0


def test_a_plan_keeps_the_deltas(folder: Path, tmp_path: Path) -> None:
    plan = ("--delta", folder / "d.wdelta", "--plan-out", tmp_path / "plan.json")
    assert flyweight("convert", folder / "base", tmp_path / "out", *plan).code == 0
    assert flyweight("convert", "--plan", tmp_path / "plan.json", tmp_path / "out").code == 0
    assert flyweight("diff", tmp_path / "out", folder / "tuned").code == 0


def test_inspect_verify_log(folder: Path) -> None:
    found = flyweight("delta", "inspect", folder / "d.wdelta", "--json").json()
    assert (found["base"], found["result"], found["exact"]) == ("base", "tuned", True)
    assert flyweight("delta", "inspect", folder / "d.wdelta", "--tensors").code == 0
    assert flyweight("delta", "verify", folder / "d.wdelta", "--json").json()["findings"] == []
    assert [each["path"] for each in flyweight("delta", "log", folder / "d.wdelta", "--json").json()] == [
        str(folder / "d.wdelta")
    ]
    done = flyweight("delta", "verify", folder / "d.wdelta", "--base", folder / "tuned", "--json")
    assert (done.code, [finding["code"] for finding in done.json()["findings"]]) == (1, ["E_PARENT", "E_PARENT"])
    assert "tensors of" in done.json()["findings"][1]["message"]


def test_a_delta_without_its_base(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "d.wdelta"
    moved.write_bytes((folder / "d.wdelta").read_bytes())
    done = flyweight("run", moved, "abc", "--raw", "--json")
    assert (done.code, done.error()["code"]) == (1, "E_PARENT")
    assert "--delta" in done.error()["hint"]
    checked = flyweight("delta", "verify", moved, "--json")
    assert checked.code == 0
    assert [finding["code"] for finding in checked.json()["findings"]] == ["E_NO_BASE"]


@pytest.mark.parametrize("deltas", [["tuned"], ["missing.wdelta"], ["base/config.json"]])
def test_what_is_no_delta(folder: Path, deltas: list[str]) -> None:
    done = flyweight("delta", "apply", folder / "base", *(folder / each for each in deltas), folder / "out", "--json")
    assert done.code in (4, 6)
    assert not (folder / "out").exists()


def test_another_base_is_named_as_it_was_given(folder: Path, tmp_path: Path) -> None:
    """A chain by its last delta, and not by the model below."""
    done = flyweight("delta", "apply", folder / "d.wdelta", folder / "d.wdelta", tmp_path / "out", "--json")
    assert done.error()["code"] == "E_PARENT"
    assert f"not from '{folder / 'd.wdelta'}'" in done.error()["message"]


def test_squash_needs_a_delta(folder: Path) -> None:
    assert flyweight("delta", "squash", folder / "base", folder / "out.wdelta").code == 2


def test_squash_is_the_delta_of_base_and_result(folder: Path, tmp_path: Path) -> None:
    """Byte for byte the file that create makes, with the name of the result and not of the last delta."""
    write_model(tmp_path / "next", tuned(llama_tensors(), 0.05, seed=2))
    flyweight("delta", "create", folder / "d.wdelta", tmp_path / "next", tmp_path / "next.wdelta")
    done = flyweight("delta", "squash", tmp_path / "next.wdelta", tmp_path / "squashed.wdelta", "--json").json()
    assert (done["base"], done["tuned"]) == (str(folder / "base"), str(tmp_path / "next.wdelta"))
    flyweight("delta", "create", folder / "base", tmp_path / "next", tmp_path / "made.wdelta")
    assert (tmp_path / "squashed.wdelta").read_bytes() == (tmp_path / "made.wdelta").read_bytes()


@pytest.mark.parametrize("strategy", ["sparse", "quantized", "int4", "lowrank"])
def test_sums_as_f32(folder: Path, tmp_path: Path, strategy: str) -> None:
    """Not rounded: rounding them gives what apply writes without a type."""
    base = {name: array.astype(np.float16) for name, array in llama_tensors().items()}
    write_model(tmp_path / "base", base)
    write_model(tmp_path / "tuned", tuned(base, 0.05))
    given = tmp_path / "base", tmp_path / "d.wdelta"
    assert flyweight("delta", "create", given[0], tmp_path / "tuned", given[1], "--strategy", strategy).code == 0
    assert flyweight("delta", "apply", *given, tmp_path / "f32", "--dtype", "f32").code == 0
    assert flyweight("delta", "apply", *given, tmp_path / "f16").code == 0
    with package.open(tmp_path / "f32") as wide, package.open(tmp_path / "f16") as narrow:
        assert all(np.array_equal(wide[name].astype(np.float16), narrow[name]) for name in base)
        rounded = any(not np.array_equal(wide[name], narrow[name]) for name in base)
        assert rounded == (strategy != "sparse")  # which has the differences themselves
