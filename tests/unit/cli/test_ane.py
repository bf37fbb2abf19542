"""`flyweight ane`: plans, comparisons, lists, pictures, refusals."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from flyweight.targets.ane.facts.engine_targets import TARGETS
from support import GOLDEN
from support.command_line import flyweight
from support.toys import safetensors_bytes, write_toy_llama


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("ane") / "toy")


def test_plan_of_a_model_as_it_is_stored(toy: Path) -> None:
    done = flyweight("ane", "plan", toy, "--target", "m1", "--json")
    assert (done.code, done.stderr) == (0, b"")
    document = done.json()
    assert (document["target"], document["profile"]) == ("H13", "seed")
    assert {weight["outcome"] for weight in document["weights"]} == {"dense"}
    assert document["moved_bytes"] == document["dense_bytes"]
    assert "forms" not in document


@pytest.mark.parametrize(("target", "outcome"), [("M1", "folds"), ("M2", "streams"), ("M11", "cannot tell")])
def test_plan_in_a_form(toy: Path, target: str, outcome: str) -> None:
    document = flyweight("ane", "plan", toy, "--target", target, "--form", "int8", "--json").json()
    layers = [weight for weight in document["weights"] if "layers" in weight["name"]]
    assert {weight["outcome"] for weight in layers} == {outcome}
    assert {weight["kernel_format"] for weight in layers} == {1}


def test_unsigned_forms_have_zero_points(toy: Path) -> None:
    said = flyweight("ane", "plan", toy, "--target", "M1", "--form", "uint8").said
    assert "refused by zero points of affine weights of H13" in said


def test_auto_chooses_what_streams(toy: Path) -> None:
    document = flyweight("ane", "plan", toy, "--target", "M1", "--form", "auto", "--max-error", "0.1", "--json").json()
    assert document["forms"]
    assert all(choice["error"] <= 0.1 for choice in document["forms"].values())
    streams = {weight["name"] for weight in document["weights"] if weight["outcome"] == "streams"}
    assert {name for name, choice in document["forms"].items() if choice["form"] != "fp16"} == streams


def test_the_answer_for_people(toy: Path) -> None:
    done = flyweight("ane", "plan", toy, "--target", "M1", "--form", "int8")
    assert done.code == 0
    assert "folds by int8 gate (0x528) of H13 [seed: guide ch.25]" in done.said
    assert "Store it as a palette" in done.said
    assert "model.layers.*.mlp.up_proj.weight ×2" in done.said
    assert "rests on" in done.said
    assert "×2" not in flyweight("ane", "plan", toy, "--target", "M1", "--form", "int8", "--all").said
    listed = flyweight("ane", "plan", toy, "--target", "M1", "--form", "lut4", "--facts").said
    assert "streaming master (0x48f) of H13" in listed


def test_profiles_are_compared(toy: Path) -> None:
    said = flyweight("ane", "plan", toy, "--target", "M1", "--form", "lut4-v2").said
    assert "streams here, refused with --profile disputed (palettes of vectors of H13)" in said
    said = flyweight("ane", "plan", toy, "--target", "M1", "--form", "lut4-v2", "--profile", "disputed").said
    assert "refused here, streams with --profile seed" in said


def test_cannot_tell_names_what_is_unknown(toy: Path) -> None:
    said = flyweight("ane", "plan", toy, "--target", "M3", "--form", "lut3").said
    assert "cannot tell: no source gives 3-bit palettes of H15" in said
    assert "cannot tell the time" in said


def test_a_package_is_planned_by_its_graph() -> None:
    done = flyweight("ane", "plan", GOLDEN / "coreml" / "ios16_int8.mlpackage", "--target", "M1", "--json")
    assert done.code == 0, done.said
    weights = done.json()["weights"]
    assert weights
    assert {weight["op"] for weight in weights} >= {"conv", "conv_transpose", "linear", "matmul"}
    assert {weight["outcome"] for weight in weights} == {"no kernel", "refused"}, "its zero points are not zero"


def test_a_converted_package_is_planned_as_the_form_it_has(tmp_path: Path) -> None:
    toy, package = write_toy_llama(tmp_path / "toy", dtype=np.float16), tmp_path / "toy.mlpackage"
    made = flyweight("convert", toy, package, "--to", "coreml", "--quant", "int8", "-q")
    assert made.code == 0, made.said
    weights = flyweight("ane", "plan", package, "--target", "M1", "--json").json()["weights"]
    assert {(weight["form"], weight["outcome"]) for weight in weights} == {("int8", "folds"), ("fp16", "dense")}


def test_compare(toy: Path) -> None:
    done = flyweight("ane", "compare", toy, "--form", "int8", "--json")
    plans = done.json()["plans"]
    assert [plan["target"] for plan in plans] == ["H13", "H14", "H15", "H16", "H17"]
    assert [("streams" in plan["totals"], "folds" in plan["totals"]) for plan in plans] == [(False, True)] + [(True, False)] * 4
    chosen = flyweight("ane", "compare", toy, "--form", "auto", "--max-error", "0.05").said
    assert "lut8 streams" in chosen
    assert "lut6 streams" in chosen
    said = flyweight("ane", "compare", toy, "--target", "M1", "--target", "H18", "--form", "fp8").said
    assert "refused" in said
    assert "streams" in said


def test_targets_and_facts() -> None:
    listed = flyweight("ane", "targets", "--json").json()["targets"]
    assert [target["name"] for target in listed] == list(TARGETS)
    assert "M1 Pro, M1 Max, M1 Ultra" in flyweight("ane", "targets").said
    facts = flyweight("ane", "facts", "--target", "M1", "--json").json()["facts"]
    assert all(fact["source"] or fact["provenance"] == "unknown" for fact in facts)
    assert "64 KB" not in flyweight("ane", "facts", "--target", "M1").said
    version = next(fact for fact in facts if "descriptor version" in fact["about"])
    assert (version["value"], version["counter"]["value"]) == (5, 7)


def test_pictures(toy: Path, tmp_path: Path) -> None:
    svg, html = tmp_path / "p.svg", tmp_path / "p.html"
    assert flyweight("ane", "plan", toy, "--target", "M1", "--svg", svg, "--html", html).code == 0
    ElementTree.fromstring(svg.read_text())
    assert "<svg" in html.read_text()
    again = flyweight("ane", "plan", toy, "--target", "M1", "--svg", svg)
    assert (again.code, "already exists" in again.said) == (6, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--target", "M99"), 2, "E_TARGET"),
        (("--target", "M1", "--form", "lut5"), 2, "E_FORM"),
        (("--target", "M1", "--profile", "mine"), 2, "E_USAGE"),
        (("--target", "M1", "--max-error", "0.1"), 2, "--max-error goes with --form auto"),
        (("--target", "M1", "--form", "auto", "--max-error", "0"), 2, "E_USAGE"),
        ((), 2, "--target"),
    ],
)
def test_refusals(toy: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = flyweight("ane", "plan", toy, *arguments)
    assert (done.code, done.stdout) == (code, b"")
    assert said in done.said


def test_odd_models(tmp_path: Path) -> None:
    odd = tmp_path / "odd.safetensors"
    tensors = {
        "\x1b[31mred<b>": np.ones((8, 8), np.float16),
        "empty": np.ones((0, 8), np.float16),
        "integers": np.ones((8, 8), np.uint8),
        "vector": np.ones(8, np.float32),
        "scalar": np.float32(1).reshape(()),
        "cube": np.ones((2, 3, 4), np.float32),
    }
    odd.write_bytes(safetensors_bytes(tensors))
    for form in ((), ("--form", "auto"), ("--form", "lut4-g16"), ("--form", "int4-b32"), ("--form", "sparse")):
        done = flyweight("ane", "plan", odd, "--target", "M1", *form)
        done.check()
        assert done.code == 0, done.said
    names = [weight["name"] for weight in flyweight("ane", "plan", odd, "--target", "M1", "--json").json()["weights"]]
    assert names == ["\x1b[31mred<b>", "cube"]
    nothing = tmp_path / "nothing.safetensors"
    nothing.write_bytes(safetensors_bytes({"vector": np.ones(8, np.float32)}))
    assert flyweight("ane", "plan", nothing, "--target", "M1").code == flyweight("ane", "compare", nothing).code == 0
    nan = tmp_path / "nan.safetensors"
    nan.write_bytes(safetensors_bytes({"w": np.full((4, 4), np.nan, np.float32)}))
    done = flyweight("ane", "plan", nan, "--target", "M1", "--form", "auto")
    assert (done.code, "tensor 'w'" in done.said) == (4, True)
