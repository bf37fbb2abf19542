"""Statistics reach the quantizers of every conversion, and those of another model reach none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.calibration import calibrate
from flyweight.calibration.sampling import Text
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.pipeline import convert, execute
from flyweight.pipeline.conversion import plan
from flyweight.pipeline.plans.plan import Plan
from flyweight.statistics_files.known_files import open_statistics
from support.command_line import flyweight as command
from support.toys import CONFIG, llama_tensors, safetensors_bytes, toy_llama_files, write_files

WORDS = Text("words.txt", "abc ab a b 12 c! " * 400)
MATRIX = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("statistics") / "toy", toy_llama_files(dtype=np.float32))


@pytest.fixture(scope="module")
def stats(toy: Path) -> Path:
    out = toy.parent / "toy.stats"
    calibrate(toy, out, texts=[WORDS], tokens=1024, window=32, gram=True)
    return out


class OneColumn:
    """Statistics by which a single column matters."""

    def __init__(self, columns: dict[str, int]) -> None:
        self.columns = columns

    def inputs_of(self, name: str) -> InputStatistics | None:
        importance = np.full(self.columns[name], 1e-6, np.float32)
        importance[3] = 1.0
        return InputStatistics(importance)


def error_in(path: Path, toy: Path, name: str = MATRIX, column: int = 3) -> float:
    with flyweight.open(toy) as source, flyweight.open(path) as made:
        of = name if name in made else "blk.1.ffn_up.weight"
        return float(np.square(source[name][:, column] - made[of].astype(np.float32)[:, column]).sum())


CLIP = """
[[rules]]
match = "*proj.weight"
codec = "affine"
params = { bits = 4, group = 32, scale = "f16" }
quantizer = "clip"

[[rules]]
match = "*"
codec = "keep"
"""


@pytest.mark.parametrize("to", ["gguf", "mlx", "hf", "safetensors"])
def test_what_matters_is_kept_better(toy: Path, tmp_path: Path, to: str) -> None:
    (tmp_path / "clip.toml").write_text(CLIP)
    with flyweight.open(toy) as source:
        columns = {name: source[name].shape[1] for name in source if source[name].ndim == 2}
    options: dict[str, Any] = {"quant": "iq4_nl"} if to == "gguf" else {"recipe": tmp_path / "clip.toml"}
    out, plain = tmp_path / f"with.{to}", tmp_path / f"without.{to}"
    convert(toy, plain, to=to, **options)
    convert(toy, out, to=to, **options, statistics=OneColumn(columns))
    assert error_in(out, toy) < error_in(plain, toy) / 4


def test_a_gguf_source_finds_the_same_inputs(toy: Path, stats: Path, tmp_path: Path) -> None:
    """The rows of q lie otherwise there: what comes of it in the end is the same."""
    convert(toy, tmp_path / "plain.gguf")
    convert(toy, tmp_path / "a.gguf", quant="iq4_nl", statistics=stats)
    convert(tmp_path / "plain.gguf", tmp_path / "b.gguf", quant="iq4_nl", statistics=stats)
    convert(tmp_path / "plain.gguf", tmp_path / "c.gguf", quant="iq4_nl")
    with (
        flyweight.open(tmp_path / "a.gguf") as a,
        flyweight.open(tmp_path / "b.gguf") as b,
        flyweight.open(tmp_path / "c.gguf") as c,
    ):
        assert all(np.array_equal(a[name], b[name]) for name in a)
        assert not all(np.array_equal(a[name], c[name]) for name in a)


def test_a_saved_plan_takes_its_statistics_along(toy: Path, stats: Path, tmp_path: Path) -> None:
    convert(toy, tmp_path / "a.gguf", quant="iq4_nl", statistics=stats)
    plan(toy, tmp_path / "b.gguf", quant="iq4_nl", statistics=stats).save(tmp_path / "plan.json")
    execute(Plan.load(tmp_path / "plan.json"), tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    copy = tmp_path / "copy.stats"
    copy.write_bytes(stats.read_bytes())
    made = plan(toy, tmp_path / "c.gguf", quant="q4_0", statistics=copy)
    calibrate(toy, copy, texts=[WORDS], tokens=512, window=32, force=True)
    with pytest.raises(FlyweightError, match="E_SOURCE_CHANGED"):
        execute(made, tmp_path / "c.gguf")
    with open_statistics(stats) as found, pytest.raises(ValueError, match="file"):
        plan(toy, tmp_path / "d.gguf", quant="q4_0", statistics=found)


def refused(tmp_path: Path, source: Path, stats: Any, *words: str, **options: Any) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(FlyweightError) as caught:
        convert(source, tmp_path / "out.gguf", quant="q4_0", statistics=stats, **options)
    assert caught.value.code == "E_STATISTICS", caught.value
    assert all(word in str(caught.value) for word in words), caught.value
    assert set(tmp_path.iterdir()) == before


def test_statistics_of_another_model(toy: Path, stats: Path, tmp_path: Path) -> None:
    other = write_files(tmp_path / "other", toy_llama_files(seed=8))
    refused(tmp_path, other, stats, "cosine", "flyweight calibrate")
    convert(other, tmp_path / "forced.gguf", quant="q4_0", statistics=stats, statistics_of_another_model=True)
    deeper = write_files(tmp_path / "deeper", toy_llama_files(layers=1))
    refused(tmp_path, deeper, stats, "no matrix", "model.layers.1")
    refused(tmp_path, deeper, stats, "no matrix", statistics_of_another_model=True)


def test_the_same_model_in_few_bits_is_no_other(toy: Path, stats: Path, tmp_path: Path) -> None:
    for quant in ("q8_0", "q4_0"):
        convert(toy, tmp_path / f"{quant}.gguf", quant=quant)
        convert(tmp_path / f"{quant}.gguf", tmp_path / f"{quant}-again.gguf", quant="q5_0", statistics=stats)


def test_statistics_without_a_model(stats: Path, tmp_path: Path) -> None:
    (tmp_path / "any.safetensors").write_bytes(safetensors_bytes({"x": np.ones((4, 32), np.float32)}))
    with pytest.raises(FlyweightError) as caught:
        convert(tmp_path / "any.safetensors", tmp_path / "out.safetensors", quant="int8", statistics=stats)
    assert caught.value.code == "E_STATISTICS"


def test_vectors_of_another_length(toy: Path, tmp_path: Path) -> None:
    class Longer:
        def inputs_of(self, name: str) -> InputStatistics | None:
            return InputStatistics(np.ones(7, np.float32))

    refused(tmp_path, toy, Longer(), "7 columns")


def test_what_nothing_is_known_of_is_said(toy: Path, tmp_path: Path) -> None:
    class Some:
        def inputs_of(self, name: str) -> InputStatistics | None:
            return InputStatistics(np.ones(CONFIG["hidden_size"], np.float32)) if name == MATRIX else None

    notes = convert(toy, tmp_path / "out.gguf", quant="q4_0", statistics=Some()).notes
    assert any("no statistics" in note for note in notes)


def test_on_the_command_line(toy: Path, stats: Path, tmp_path: Path) -> None:
    convert(toy, tmp_path / "a.gguf", quant="iq4_nl", statistics=stats)
    for option in ("--stats", "--imatrix"):
        done = command("convert", toy, tmp_path / f"b{option}.gguf", "--quant", "iq4_nl", option, stats)
        assert done.code == 0, done.said
        assert (tmp_path / f"b{option}.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
    done = command("convert", toy, tmp_path / "c.gguf", "--quant", "q4_0", "--stats", toy / "config.json")
    assert done.code == 4, done.said
    assert not (tmp_path / "c.gguf").exists()


def test_tied_outputs_are_known(tmp_path: Path) -> None:
    tensors = {name: values for name, values in llama_tensors().items() if name != "lm_head.weight"}
    files = toy_llama_files() | {"model.safetensors": safetensors_bytes(tensors)}
    files["config.json"] = files["config.json"].replace(b'"tie_word_embeddings": false', b'"tie_word_embeddings": true')
    tied = write_files(tmp_path / "tied", files)
    calibrate(tied, tmp_path / "tied.stats", texts=[WORDS], tokens=512, window=32)
    with open_statistics(tmp_path / "tied.stats") as found:
        assert found.inputs_of("model.embed_tokens.weight") is not None
        assert found.inputs_of("lm_head.weight") is None
    convert(tied, tmp_path / "out.gguf", quant="q4_0", statistics=tmp_path / "tied.stats")


def test_statistics_can_be_gathered_on_the_way(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(WORDS.content)
    calibrate(toy, tmp_path / "words.stats", texts=[tmp_path / "words.txt"], gram=True)
    convert(toy, tmp_path / "a.gguf", quant="iq4_nl", statistics=tmp_path / "words.stats")
    report = flyweight.convert(toy, tmp_path / "b.gguf", quant="iq4_nl", calibrate=[tmp_path / "words.txt"], check=False)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert any("calibrated on" in note for note in report.notes)
    text = "--calibrate-text", tmp_path / "words.txt"
    done = command("convert", toy, tmp_path / "c.gguf", "--quant", "iq4_nl", *text, "--no-check")
    assert done.code == 0, done.said
    assert (tmp_path / "c.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
    done = command("convert", toy, tmp_path / "d.gguf", "--quant", "iq4_nl", "--calibrate", "--json")
    assert done.code == 0, done.said
    assert {path.name for path in tmp_path.iterdir()} == {"words.txt", "words.stats", *(f"{x}.gguf" for x in "abcd")}


def test_what_is_refused_is_refused_before_anything_is_gathered(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "there.gguf").write_bytes(b"GGUF")
    for arguments, code in (
        (("there.gguf", "--quant", "q4_0"), 6),
        (("new.gguf", "--quant", "q9_9"), 4),
        (("new.gguf", "--stats", tmp_path / "there.gguf"), 2),
        (("new.gguf", "--plan-out", tmp_path / "plan.json"), 2),
    ):
        done = command("convert", toy, tmp_path / arguments[0], *arguments[1:], "--calibrate")
        assert done.code == code, (arguments, done.said)
    assert {path.name for path in tmp_path.iterdir()} == {"there.gguf"}
