"""Plans on disk: how they are used, what they are held against, and what a hostile or an edited one cannot do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flyweight
from flyweight import Plan
from flyweight.foundation.errors import FlyweightError, OutputError
from support import GOLDEN
from support.command_line import flyweight as command
from support.toys import draft_head, safetensors_bytes, write_package, write_toy_llama

PLAN = GOLDEN / "plan.json"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, with a model and a plan of its conversion to four bits."""
    monkeypatch.chdir(tmp_path)
    write_toy_llama(tmp_path / "toy", layers=1)
    flyweight.plan("toy", "out.gguf", quant="q4_0").save("plan.json")
    return tmp_path


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def refusal(path: Path = Path("plan.json"), destination: str = "made.gguf") -> FlyweightError:
    """The error of carrying a plan out, which has written nothing."""
    with pytest.raises(FlyweightError) as caught:
        flyweight.execute(Plan.load(path), destination)
    assert not Path(destination).exists()
    return caught.value


# Use ----------------------------------------------------------------------------------------------


def test_on_the_command_line(work: Path) -> None:
    wish = ("toy", "out.gguf", "--quant", "q8_0")
    assert command("convert", *wish, "--plan-out", "p.json").code == 0
    assert not Path("out.gguf").exists()
    printed = command("convert", *wish, "--plan-out", "-")
    assert (printed.code, printed.stdout) == (0, Path("p.json").read_bytes())
    assert command("convert", *wish, "--plan-out", "p.json", "--json").error()["code"] == "E_EXISTS"

    dry = command("convert", "--plan", "p.json", "--dry-run", "--json").json()
    assert dry == command("convert", *wish, "--dry-run", "--json").json() | {"source": str(work / "toy")}
    assert command("convert", "--plan", "p.json", "--jobs", 1, "--max-ram", "1G", "--json").json()["recipe"] == "q8_0"
    assert command("convert", "toy", "direct.gguf", "--quant", "q8_0").code == 0
    assert Path("out.gguf").read_bytes() == Path("direct.gguf").read_bytes()

    assert command("convert", "--plan", "p.json", "--json").error()["code"] == "E_EXISTS"
    assert command("convert", "--plan", "p.json", "--force").code == 0
    assert command("convert", "--plan", "p.json", "other.gguf", "--tensors").code == 0
    assert Path("other.gguf").read_bytes() == Path("direct.gguf").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ("--quant", "q4_0"), ("--to", "hf"), ("--recipe", "r.toml"), ("--dtype", "f32"), ("--shard-size", "1G"),
        ("--add", "int4"), ("--plan-out", "x.json"), ("--plan-digests",), ("--sparse", "0.5"), ("a.gguf", "b.gguf"),
    ],
)  # fmt: skip
def test_what_is_planned_already_is_not_asked_again(options: tuple[str, ...], work: Path) -> None:
    done = command("convert", "--plan", "plan.json", *options)
    assert (done.code, sorted(os.listdir())) == (2, ["plan.json", "toy"])
    assert "--plan and" in done.stderr.decode()


def test_a_source_or_a_plan_is_needed(work: Path) -> None:
    assert "SOURCE" in command("convert").stderr.decode()
    assert "--plan-digests goes with --plan-out" in command("convert", "toy", "x.gguf", "--plan-digests").stderr.decode()
    assert command("convert", "--plan", "missing.json").code == 6


def test_without_a_destination_it_appears_beside_the_plan(work: Path) -> None:
    Path("plans").mkdir()
    shutil.move("plan.json", "plans/plan.json")
    edit(Path("plans/plan.json"), lambda plan: plan["inputs"]["source"].update(path=str(work / "toy")))
    assert command("convert", "--plan", "plans/plan.json").code == 0
    assert sorted(os.listdir("plans")) == ["out.gguf", "plan.json"]


def test_a_stopped_run_is_resumed_and_not_by_another_plan(work: Path) -> None:
    def stop(name: str, nbytes: int, total: int) -> None:
        raise KeyboardInterrupt

    plan = Plan.load("plan.json")
    with pytest.raises(KeyboardInterrupt):
        flyweight.execute(plan, "made.gguf", jobs=1, progress=stop)
    other = flyweight.plan("toy", "made.gguf", quant="q8_0")
    with pytest.raises(OutputError, match="different conversion"):
        flyweight.execute(other, "made.gguf", resume=True)
    assert flyweight.execute(plan, "made.gguf", resume=True).resumed >= 1
    flyweight.convert("toy", "direct.gguf", quant="q4_0")
    assert Path("made.gguf").read_bytes() == Path("direct.gguf").read_bytes()


def test_a_gate_is_asked_when_the_plan_is_carried_out(work: Path) -> None:
    Path("strict.toml").write_text('[[rules]]\nmatch = "*_proj*"\ncodec = "q4_0"\n[gate]\nmax_kl = 1e-9\n')
    flyweight.plan("toy", "made.gguf", recipe="strict.toml").save("strict.json")
    assert refusal(Path("strict.json")).code == "E_GATE"
    report = flyweight.execute(Plan.load("strict.json"), "made.gguf", allow_ungated=True)
    assert report.gate is not None
    assert report.gate["limits"]["max_kl"] == 1e-9


def test_a_model_and_its_plan_move_together(work: Path) -> None:
    shutil.move(work, work.with_name("moved"))
    try:
        flyweight.execute(Plan.load(work.with_name("moved") / "plan.json"), work.with_name("made.gguf"))
    finally:
        shutil.move(work.with_name("moved"), work)
    flyweight.convert("toy", "direct.gguf", quant="q4_0")
    assert work.with_name("made.gguf").read_bytes() == Path("direct.gguf").read_bytes()


def test_a_plan_made_elsewhere_is_read(work: Path) -> None:
    """As version 1 was written first: the form may only grow."""
    plan = Plan.from_json(PLAN.read_bytes(), "/somewhere")
    assert plan.to_json("/somewhere") == PLAN.read_bytes()
    assert plan.inputs["source"].path == "/somewhere/toy"
    assert {step.action for step in plan.steps} == {"remux", "transcode"}


# Identity -----------------------------------------------------------------------------------------


def test_bytes_written_under_the_same_times_are_noticed(work: Path) -> None:
    file = Path("toy/model.safetensors")
    before, raw = file.stat(), bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    error = refusal()
    assert (error.code, error.file) == ("E_SOURCE_CHANGED", str(work / file))
    assert f"made for {len(raw)} bytes" in error.message


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_side_files_are_inputs_too(file: str, work: Path) -> None:
    place = Path("toy") / file
    place.write_bytes(place.read_bytes() + b"\n")
    assert (refusal().code, refusal().file) == ("E_SOURCE_CHANGED", str(work / place))


def test_a_file_that_came_or_went_is_named(work: Path) -> None:
    Path("toy/new.txt").write_text("new")
    assert "toy/new.txt: was not there" in str(refusal())
    Path("toy/new.txt").unlink()
    Path("toy/README.md").unlink()
    assert "toy/README.md: is not there any more" in str(refusal())


def test_with_digests_a_copy_will_do_and_another_model_will_not(work: Path) -> None:
    assert command("convert", "toy", "out.gguf", "--plan-out", "d.json", "--plan-digests").code == 0
    for folder in ("same", "other"):
        shutil.copytree("toy", f"{folder}/toy")
        shutil.copy("plan.json", folder)
        shutil.copy("d.json", folder)
    assert refusal(Path("same/plan.json")).code == "E_SOURCE_CHANGED"
    flyweight.execute(Plan.load("same/d.json"), "same.gguf")
    flyweight.convert("toy", "direct.gguf")
    assert Path("same.gguf").read_bytes() == Path("direct.gguf").read_bytes()
    weights = Path("other/toy/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert refusal(Path("other/d.json")).code == "E_SOURCE_CHANGED"


def test_what_is_embedded_is_an_input(work: Path) -> None:
    Path("head.safetensors").write_bytes(safetensors_bytes(draft_head()))
    package = write_package(work / "m.mlpackage")
    extras = flyweight.Extras(eagle=Path("head.safetensors"), coreml=package)
    flyweight.plan("toy", "x.squizd", extras=extras).save("x.json")
    (package / "Data" / "new").parent.mkdir(exist_ok=True)
    (package / "Data" / "new").write_bytes(b"x")
    assert "Data/new: was not there" in str(refusal(Path("x.json"), "x.squizd"))


# Hostile and edited plans -------------------------------------------------------------------------

Edit = Callable[[dict[str, Any]], object]


def matrix(plan: dict[str, Any]) -> dict[str, Any]:
    """The step of a matrix that is quantized."""
    return next(step for step in plan["steps"] if step["codec"]["name"] == "q4_0" and "layers" in step["source"])


HOSTILE: dict[str, tuple[str, Edit]] = {
    "no version": ("E_PLAN", lambda plan: plan.pop("flyweight_plan")),
    "a version that is true": ("E_PLAN", lambda plan: plan.update(flyweight_plan=True)),
    "a later version": ("E_PLAN_VERSION", lambda plan: plan.update(flyweight_plan=2)),
    "an unknown field": ("E_PLAN", lambda plan: plan.update(after="rm -r")),
    "a field too few": ("E_PLAN", lambda plan: plan.pop("dtype")),
    "no such format": ("E_UNKNOWN_FORMAT", lambda plan: plan.update(format="exe")),
    "no such element type": ("E_DTYPE", lambda plan: plan.update(dtype="f17")),
    "shards of no bytes": ("E_PLAN", lambda plan: plan.update(shard_bytes=0)),
    "shards of true bytes": ("E_PLAN", lambda plan: plan.update(shard_bytes=True)),
    "a name that climbs": ("E_PLAN", lambda plan: plan.update(name="../../x.gguf")),
    "a name that is a place": ("E_PLAN", lambda plan: plan.update(name="..")),
    "no source": ("E_PLAN", lambda plan: plan["inputs"].pop("source")),
    "another input": ("E_PLAN", lambda plan: plan["inputs"].update(eagle=plan["inputs"]["source"])),
    "a path of NUL": ("E_PLAN", lambda plan: plan["inputs"]["source"].update(path="a\0b")),
    "a source that is a number": ("E_PLAN", lambda plan: plan["inputs"]["source"].update(path=5)),
    "files that are a list": ("E_PLAN", lambda plan: plan["inputs"]["source"].update(files=[])),
    "a size that is true": ("E_PLAN", lambda plan: plan["inputs"]["source"]["files"]["config.json"].update(size=True)),
    "fewer files": ("E_SOURCE_CHANGED", lambda plan: plan["inputs"]["source"]["files"].pop("config.json")),
    "a gate that is text": ("E_PLAN", lambda plan: plan["recipe"].update(gate="none")),
    "a gate without limits": ("E_RECIPE", lambda plan: plan["recipe"].update(gate={})),
    "a recipe without a name": ("E_PLAN", lambda plan: plan["recipe"].pop("name")),
    "a step that is text": ("E_PLAN", lambda plan: plan["steps"].append("x")),
    "an action nobody knows": ("E_PLAN", lambda plan: matrix(plan).update(action="delete")),
    "an action that is a list": ("E_PLAN", lambda plan: matrix(plan).update(action=[])),
    "an unknown field of a step": ("E_PLAN", lambda plan: matrix(plan).update(file="/etc/passwd")),
    "a default spelt out": ("E_PLAN", lambda plan: matrix(plan).update(draft=False)),
    "a shape of minus one": ("E_SHAPE", lambda plan: matrix(plan).update(shape=[-1, 64])),
    "a rank beyond limits": ("E_RANK", lambda plan: matrix(plan).update(shape=[1] * 99)),
    "another shape": ("E_PLAN", lambda plan: matrix(plan).update(shape=[64, 32])),
    "codecs in codecs in codecs": ("E_PLAN", lambda plan: matrix(plan)["codec"].update(params=nested(9))),
    "no such codec": ("E_UNKNOWN_CODEC", lambda plan: matrix(plan)["codec"].update(name="zip")),
    "parameters it has not": ("E_CODEC_PARAMS", lambda plan: matrix(plan)["codec"].update(params={"x": 1})),
    "what the format does not carry": ("E_UNSUPPORTED", lambda plan: matrix(plan).update(codec={"name": "nf4", "params": {}})),
    "no such quantizer": ("E_RECIPE", lambda plan: matrix(plan).update(quantizer="magic")),
    "a quantizer for another codec": ("E_QUANTIZER", lambda plan: matrix(plan).update(quantizer="kmeans")),
    "pruned without a mask": ("E_RECIPE", lambda plan: matrix(plan).update(sparsity=0.5)),
    "copied, but not as it is": ("E_PLAN", lambda plan: matrix(plan).update(action="remux")),
    "repacked from no grid": ("E_PLAN", lambda plan: matrix(plan).update(action="repack")),
    "a tensor twice": ("E_PLAN", lambda plan: plan["steps"].append(matrix(plan))),
    "a tensor left out": ("E_PLAN", lambda plan: plan["steps"].remove(matrix(plan))),
    "a tensor under another name": ("E_PLAN", lambda plan: matrix(plan).update(name="x")),
    "a tensor of another": ("E_PLAN", lambda plan: matrix(plan).update(source="model.embed_tokens.weight")),
    "a tensor from nowhere": ("E_PLAN", lambda plan: matrix(plan).update(source=None)),
    "a tensor of a draft head": ("E_PLAN", lambda plan: matrix(plan).update(draft=True)),
    "rows in no order": ("E_PLAN", lambda plan: matrix(plan).update(transform={"heads": 3, "inverse": True, "add": 0.0})),
    "values moved": ("E_PLAN", lambda plan: matrix(plan).update(transform={"heads": 0, "inverse": False, "add": 1.0})),
    "a transform of text": ("E_PLAN", lambda plan: matrix(plan).update(transform={"heads": "x", "inverse": False, "add": 1.0})),
}


def nested(depth: int) -> dict[str, Any]:
    return {"inner": {"name": "masked", "params": nested(depth - 1)}} if depth else {}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_plan_is_refused(name: str, work: Path) -> None:
    code, change = HOSTILE[name]
    edit(work / "plan.json", change)
    assert refusal().code == code
    done = command("convert", "--plan", "plan.json", "--json")
    assert done.error()["code"] == code
    done.check(as_json=True)
    assert sorted(os.listdir()) == ["plan.json", "toy"]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"null", b'{"flyweight_plan": 1}', b"\xff", b"[" * 100_000, b"{" * 500])
def test_what_is_no_plan_is_refused(raw: bytes, work: Path) -> None:
    Path("plan.json").write_bytes(raw)
    refusal()


def test_a_source_on_the_network_is_refused_by_name(work: Path) -> None:
    edit(work / "plan.json", lambda plan: plan["inputs"]["source"].update(path="https://example.org/m.gguf"))
    error = refusal()
    assert (error.code, error.file) == ("E_REMOTE", "https://example.org/m.gguf")


def test_the_output_is_not_put_through_a_link(work: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    Path("out.gguf").symlink_to(outside / "x.gguf")
    assert command("convert", "--plan", "plan.json", "--force", "--json").code == 6
    assert os.listdir(outside) == []


def test_an_edit_that_holds_is_carried_out(work: Path) -> None:
    edit(work / "plan.json", lambda plan: matrix(plan).update(codec={"name": "q8_0", "params": {}}))
    report = flyweight.execute(Plan.load("plan.json"), "made.gguf")
    assert [tensor.codec for tensor in report.tensors].count("q8_0") == 2  # the output head is the other
    assert not flyweight.verify("made.gguf").findings
