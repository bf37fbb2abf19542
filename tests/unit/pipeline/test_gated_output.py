"""The accuracy gate: who has to pass it, what is recorded, what cannot be got around."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from click.testing import CliRunner

import flyweight
from flyweight import pipeline
from flyweight.cli.chat import command as chat_command
from flyweight.cli.convert import command as convert_command
from flyweight.cli.eval import command as eval_command
from flyweight.cli.inspect import command as inspect_command
from flyweight.cli.run import command as run_command
from flyweight.evaluate.gate_measure import drawn_windows, measure
from flyweight.foundation.accuracy_gate import INT3, Gate, Interval, Verdict, subject_of
from flyweight.foundation.errors import FlyweightError, GateError, MalformedError, UnsupportedError
from flyweight.pipeline import load_recipe
from flyweight.runtime import Sampler, open_model
from flyweight.runtime.batch import Batch
from support import GOLDEN
from support.toys import write_toy_llama

INT3_DIRECTORY = GOLDEN / "npydir" / "int3"
QUICK = "tokens = 64\nwindow = 8\n"
RECIPE = """
protect = true
[[rules]]
match = "*"
codec = "{codec}"
params = {params}
[gate]
{limits}
{quick}
"""
PLAIN = "{ bits = 3, excess = 3, top = 7, group = 64, flat = true, zeros = true }"
CORRECTED = f"""{{ rank = 4, outliers = 0, factor = "f32", inner = {{ name = "excess", params = {PLAIN} }} }}"""


def recipe(path: Path, limits: str, codec: str = "excess", params: str = PLAIN) -> Path:
    path.write_text(RECIPE.format(codec=codec, params=params, limits=limits, quick=QUICK), "utf-8")
    return path


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("gate") / "toy", dtype=np.float32)


@pytest.fixture(scope="module")
def passed(toy: Path) -> Path:
    """Three bits that passed a lenient gate."""
    lenient = recipe(toy.parent / "lenient.toml", "max_kl = 0.5\nmax_perplexity_ratio = 3")
    flyweight.convert(toy, toy.parent / "passed", to="npy-dir", recipe=lenient)
    return toy.parent / "passed"


@pytest.fixture(scope="module")
def failed(toy: Path) -> Path:
    """Three bits that failed a strict gate and are there all the same."""
    strict = recipe(toy.parent / "strict.toml", "max_kl = 1e-9")
    flyweight.convert(toy, toy.parent / "failed", to="npy-dir", recipe=strict, allow_ungated=True)
    return toy.parent / "failed"


def record(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "flyweight.json").read_text("utf-8")))


def rewritten(path: Path, document: dict[str, Any]) -> Path:
    (path / "flyweight.json").write_text(json.dumps(document), "utf-8")
    return path


def refused(path: Path) -> GateError:
    """Running and converting are, inspecting and comparing are not."""
    with pytest.raises(GateError) as caught, open_model(path):
        pass
    with pytest.raises(GateError):
        flyweight.convert(path, path.parent / "onwards.gguf")
    assert not (path.parent / "onwards.gguf").exists()
    with flyweight.open(path) as model:
        assert len(model) > 0
    assert flyweight.diff(path, path).identical
    with open_model(path, allow_ungated=True) as model:
        assert model.context
    return caught.value


def test_a_lenient_gate_is_passed_and_recorded(toy: Path, passed: Path) -> None:
    gate = record(passed)["gate"]
    assert gate["passed"] is True
    assert gate["limits"] == {"max_kl": 0.5, "max_perplexity_ratio": 3, "tokens": 64, "window": 8}
    assert 0 < gate["kl"]["low"] < gate["kl"]["value"] < gate["kl"]["high"] < 0.5
    assert (gate["predicted"], gate["text"], gate["source"], gate["reason"]) == (56, "own", "toy", "")
    with open_model(passed) as model:
        assert model.context
    assert flyweight.verify(passed).ok
    shown = CliRunner().invoke(inspect_command, [str(passed), "--json"])
    assert json.loads(shown.stdout)["facts"]["gate"] == gate
    assert "passed: KL" in CliRunner().invoke(inspect_command, [str(passed)]).stdout
    again = measure(toy, passed, Gate.of(gate["limits"]))
    assert again.about(gate["subject"]).as_json() == gate


def test_the_figures_are_those_of_eval(toy: Path, passed: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abc cab bca abcabc 123 (abc) " * 20, "utf-8")
    gate = Gate(max_kl=1, tokens=160, window=16)
    found = measure(toy, passed, gate, text=text)
    settings = ["--context", "16", "--tokens", "160", "--exact", "--kv", "f32", "--json"]
    done = CliRunner().invoke(eval_command, [str(passed), "--text", str(text), "--against", str(toy), *settings])
    figures = json.loads(done.stdout)
    assert found.kl is not None
    assert found.perplexity_ratio is not None
    assert figures["kl_mean"]["value"] == pytest.approx(found.kl.value, rel=1e-12)
    ratio = figures["perplexity"]["value"] / figures["reference_perplexity"]["value"]
    assert found.perplexity_ratio.value == pytest.approx(ratio, rel=1e-9)
    assert (found.text, found.predicted) == ("file", 150)


def test_a_strict_gate_leaves_nothing(toy: Path, tmp_path: Path) -> None:
    strict = recipe(tmp_path / "strict.toml", "max_kl = 1e-9")
    with pytest.raises(GateError) as caught:
        flyweight.convert(toy, tmp_path / "out", to="npy-dir", recipe=strict)
    assert (caught.value.code, caught.value.exit_code) == ("E_GATE", 1)
    assert "KL divergence" in caught.value.message
    assert "the limit is 1e-09" in caught.value.message
    gate = caught.value.as_json()["gate"]
    assert isinstance(gate, dict)
    assert gate["kl"]["value"] > 1e-9
    assert [path.name for path in tmp_path.iterdir()] == ["strict.toml"]


def test_an_override_is_recorded_truthfully(failed: Path) -> None:
    gate = record(failed)["gate"]
    assert gate["passed"] is False
    assert gate["kl"]["value"] > gate["limits"]["max_kl"]
    assert "not accurate enough" in refused(failed).message


def test_the_command_line(toy: Path, tmp_path: Path) -> None:
    strict = recipe(tmp_path / "strict.toml", "max_perplexity_ratio = 1e-3")
    arguments = [str(toy), str(tmp_path / "out"), "--to", "npy-dir", "--recipe", str(strict)]
    assert isinstance(CliRunner().invoke(convert_command, arguments).exception, GateError)
    planned = CliRunner().invoke(convert_command, [*arguments, "--dry-run", "--json"])
    assert json.loads(planned.stdout)["gate"]["max_perplexity_ratio"] == 1e-3
    done = CliRunner().invoke(convert_command, [*arguments, "--allow-ungated", "--json"])
    report = json.loads(done.stdout)
    assert report["gate"]["passed"] is False
    assert any("without a passed accuracy gate" in note for note in report["notes"])
    assert report["nbytes"] == sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    for command in (run_command, chat_command):
        words = [str(tmp_path / "out"), *(["abc"] if command is run_command else []), "--max-tokens", "2"]
        assert isinstance(CliRunner().invoke(command, words, input="abc\n").exception, GateError)
        assert CliRunner().invoke(command, [*words, "--allow-ungated"], input="abc\n").exit_code == 0
    table = CliRunner().invoke(convert_command, [*arguments, "--allow-ungated", "--force"])
    assert "failed: KL" in table.stdout


@pytest.mark.parametrize("target", ["npy-dir", "mlx", "hf"])
def test_three_bits_are_gated_in_every_format(toy: Path, tmp_path: Path, target: str) -> None:
    """The gate belongs to what is lost. A copy loses nothing."""
    done = flyweight.convert(toy, tmp_path / "int3", to=target, quant="int3")
    assert done.gate is not None
    assert done.gate["limits"] == INT3.as_json()
    flyweight.convert(tmp_path / "int3", tmp_path / "copy", to=target)
    with pytest.raises(GateError, match="there is no way to measure it"):
        pipeline.convert(toy, tmp_path / "ungated", to=target, quant="int3")
    assert not (tmp_path / "ungated").exists()


def test_the_preset_has_a_gate_and_others_have_none(toy: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    assert flyweight.convert(toy, weights, quant="int3").gate is None, "weights alone cannot be run"
    for target, quant in (("npy-dir", "int8"), ("mlx", "int4")):
        assert flyweight.convert(toy, tmp_path / target, to=target, quant=quant).gate is None
        with open_model(tmp_path / target) as model:
            assert model.context


def test_corrected_tensors_are_three_bits_too(toy: Path, tmp_path: Path) -> None:
    limits = recipe(tmp_path / "low-rank.toml", "max_kl = 1e-9", "corrected", CORRECTED)
    with pytest.raises(GateError):
        flyweight.convert(toy, tmp_path / "out", to="npy-dir", recipe=limits)


def test_a_gate_of_a_recipe_holds_for_every_format(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "gated.toml"
    rules = 'protect = true\n[[rules]]\nmatch = "*"\ncodec = "q4_0"\n[gate]\nmax_kl = {}\n' + QUICK
    path.write_text(rules.format("1e-9"), "utf-8")
    with pytest.raises(GateError):
        flyweight.convert(toy, tmp_path / "out.gguf", recipe=path)
    assert not (tmp_path / "out.gguf").exists()
    path.write_text(rules.format("0.5"), "utf-8")
    report = flyweight.convert(toy, tmp_path / "out.gguf", recipe=path)
    assert report.gate is not None
    assert report.gate["passed"]


def test_an_interrupted_run_meets_the_gate_when_it_is_resumed(toy: Path, tmp_path: Path) -> None:
    strict = recipe(tmp_path / "strict.toml", "max_kl = 1e-9")

    def stop(name: str, nbytes: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flyweight.convert(toy, tmp_path / "out", to="npy-dir", recipe=strict, progress=stop, jobs=1)
    assert list(tmp_path.glob(".out.partial-*"))
    with pytest.raises(GateError):
        flyweight.convert(toy, tmp_path / "out", to="npy-dir", recipe=strict, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["strict.toml"]


def test_a_directory_of_the_public_tool_was_never_measured(toy: Path, passed: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(inspect_command, [str(INT3_DIRECTORY), "--json"]).exit_code == 0
    bare = shutil.copytree(passed, tmp_path / "bare")
    (bare / "flyweight.json").unlink()
    assert "no accuracy record" in refused(bare).message
    assert flyweight.verify(bare).ok
    facts = json.loads(CliRunner().invoke(inspect_command, [str(bare), "--json"]).stdout)["facts"]
    assert facts == {"gate": "never measured"}
    text = tmp_path / "text.txt"
    text.write_text("abc cab bca abcabc 123 (abc) " * 20, "utf-8")
    measured = CliRunner().invoke(eval_command, [str(bare), "--text", str(text), "--context", "32", "--against", str(toy)])
    assert measured.exit_code == 0


def test_a_gate_belongs_to_its_arrays(passed: Path, failed: Path, tmp_path: Path) -> None:
    other = shutil.copytree(passed, tmp_path / "array")
    scales = next((other / "tensors").glob("*__s3.npy"))
    np.save(scales, np.load(scales) * 2)
    with pytest.raises(MalformedError) as damaged, open_model(other):
        pass
    assert damaged.value.code == "E_DIGEST"  # before anyone is told how to get around a gate
    said = record(other)
    digests = said["files"] | {scales.relative_to(other).as_posix(): blake3(scales.read_bytes()).hexdigest()}
    assert "other arrays" in refused(rewritten(other, said | {"files": digests})).message
    moved = rewritten(
        shutil.copytree(failed, tmp_path / "gate"), record(failed) | {"gate": record(passed)["gate"] | {"subject": "0" * 64}}
    )
    assert "other arrays" in refused(moved).message
    assert "E_GATE" in {finding.code for finding in flyweight.verify(moved).findings}


def test_figures_that_contradict_their_verdict_are_malformed(failed: Path, tmp_path: Path) -> None:
    said = record(failed)
    path = rewritten(shutil.copytree(failed, tmp_path / "flipped"), said | {"gate": said["gate"] | {"passed": True}})
    with pytest.raises(MalformedError) as caught:
        flyweight.open(path)
    assert caught.value.code == "E_RECORD"


HOSTILE: list[Any] = [
    None, 1, [], {}, {"passed": True}, "passed",
    {"limits": {"max_kl": 0.01}}, {"limits": []}, {"limits": None}, {"limits": {}}, {"limits": {"max_kl": True}},
    {"kl": None}, {"kl": 1}, {"kl": []}, {"kl": {"value": 1, "low": 2, "high": 3}}, {"kl": {"value": 0, "low": 0}},
    {"kl": {"value": 10**400, "low": 0, "high": 1}}, {"predicted": -1}, {"predicted": True}, {"subject": "0"},
    {"subject": 1}, {"source": []},
    {"text": None}, {"reason": 0}, {"reason": "x"}, {"extra": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE, ids=repr)
def test_hostile_records(change: Any) -> None:
    sound = Verdict(INT3, Interval(0.05, 0.04, 0.06), Interval(1.05, 1.0, 1.1), 630, "own", "0" * 64, "m", "0" * 64).as_json()
    assert Verdict.read(sound, file="f", code="E_RECORD").as_json() == sound
    document = sound | change if isinstance(change, dict) and change and "passed" not in change else change
    with pytest.raises(MalformedError) as caught:
        Verdict.read(document, file="f", code="E_RECORD")
    assert caught.value.code == "E_RECORD"


def test_copies_go_by_the_verdict_of_their_source(passed: Path, failed: Path, tmp_path: Path) -> None:
    """Held against itself a copy would always pass."""
    flyweight.convert(passed, tmp_path / "copy", to="npy-dir")
    assert record(tmp_path / "copy")["gate"] == record(passed)["gate"]
    with open_model(tmp_path / "copy") as model:
        assert model.context
    flyweight.convert(failed, tmp_path / "worse", to="npy-dir", allow_ungated=True)
    assert record(tmp_path / "worse")["gate"]["passed"] is False
    assert "copied" in refused(tmp_path / "worse").message
    flyweight.convert(failed, tmp_path / "kept.safetensors", allow_ungated=True)
    with pytest.raises(GateError, match="copied"):
        flyweight.convert(tmp_path / "kept.safetensors", tmp_path / "laundered", to="npy-dir")


def test_a_text_without_a_gate_is_refused(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no accuracy gate"):
        flyweight.convert(toy, tmp_path / "out", to="npy-dir", quant="int8", gate_text=toy / "README.md")
    assert not (tmp_path / "out").exists()


def test_what_does_not_fit_the_memory_is_not_measured(toy: Path, passed: Path) -> None:
    assert "needs" in measure(toy, passed, INT3, max_ram=1 << 20).reason


def test_a_passed_directory_may_become_anything(passed: Path, tmp_path: Path) -> None:
    assert flyweight.convert(passed, tmp_path / "out.gguf", quant="q8_0").gate is None


def test_what_cannot_be_run_does_not_pass(tmp_path: Path, toy: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(toy / "model.safetensors", bare)
    with pytest.raises(GateError, match="could not be measured"):
        flyweight.convert(bare, tmp_path / "out", to="npy-dir", quant="int3")
    report = flyweight.convert(bare, tmp_path / "out", to="npy-dir", quant="int3", allow_ungated=True)
    assert report.gate is not None
    assert (report.gate["passed"], report.gate["kl"]) == (False, None)
    assert record(tmp_path / "out")["gate"]["reason"]


def test_a_short_text_does_not_pass(toy: Path, passed: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abc cab bca", "utf-8")
    found = measure(toy, passed, INT3, text=text)
    assert not found.passed
    assert "fewer than" in found.reason
    text.write_bytes(b"abc\xff")
    with pytest.raises(FlyweightError) as caught:
        measure(toy, passed, INT3, text=text)
    assert caught.value.code == "E_TEXT"


@pytest.mark.parametrize(
    "table",
    ["", "max_kl = 0", "max_kl = -1", "max_kl = nan", "max_kl = inf", 'max_kl = "1"', "max_kl = true", "max_kld = 1",
     "max_kl = 1\ntokens = 7", "max_kl = 1\nwindow = 1", "max_kl = 1\ntokens = 64.0", f"max_kl = {10**400}", "tokens = 640"],
)  # fmt: skip
def test_gates_that_are_none(table: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f"[gate]\n{table}\n", "utf-8")
    with pytest.raises(UnsupportedError) as caught:
        load_recipe(path)
    assert caught.value.code == "E_RECIPE"


def test_a_gate_in_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[gate]\nmax_kl = 0.2\ntokens = 1024\n", "utf-8")
    assert load_recipe(path).gate == Gate(max_kl=0.2, tokens=1024)
    path.write_text("gate = 3\n", "utf-8")
    with pytest.raises(UnsupportedError):
        load_recipe(path)


def test_an_interval_passes_whole_or_not_at_all() -> None:
    gate = Gate(max_kl=0.1)
    assert Verdict(gate, Interval(0.05, 0.01, 0.1)).passed
    assert not Verdict(gate, Interval(0.05, 0.01, 0.11)).passed
    assert not Verdict(gate, None, Interval(1, 1, 1)).passed


def test_a_subject_does_not_depend_on_order_or_compression() -> None:
    assert subject_of({"a.npy": "1", "b.npy": "2"}) == subject_of({"b.npy.zst": "2", "a.npy": "1"})
    assert subject_of({"a.npy": "1", "b.npy": "2"}) != subject_of({"a.npy": "2", "b.npy": "1"})


def test_texts_drawn_side_by_side_are_those_drawn_alone(toy: Path) -> None:
    with open_model(toy, int8=False, kv="f32") as model:
        together = drawn_windows(model, 3, 12)
        assert together[:, 0].tolist() == [1, 1, 1]
        assert len({tuple(window) for window in together}) == 3
        for number, window in enumerate(together):
            draw, cache = Sampler(temperature=1.0, seed=number), model.cache()
            said = [1]
            while len(said) < 12:
                said.append(draw(model.decoder.forward(said[-1:], cache)[-1]))
            assert window.tolist() == said
        caches = Batch([model.cache(), model.cache()])
        with pytest.raises(ValueError, match="a batch of 2"):
            model.decoder.forward([1, 2, 3], caches)
