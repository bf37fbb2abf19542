"""Types for a size: the size is met, more bytes mean less loss, and the recipe gives the same file again."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight.calibration import calibrate
from flyweight.calibration.sampling import Text, sample_windows
from flyweight.checkpoint import open_checkpoint
from flyweight.evaluate import cost_trials
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.measuring import size_to_run_in
from flyweight.pipeline import convert
from flyweight.pipeline.conversion import open_conversion
from flyweight.pipeline.plans.target_size import Size
from flyweight.runtime import open_model
from flyweight.runtime.model import beside_weights
from flyweight.statistics_files.known_files import open_statistics
from support.command_line import flyweight as command
from support.toys import toy_llama_files, write_files

WORDS = Text("words.txt", "abc ab a b 12 c! " * 400)


def windows(model: Any, count: int, length: int) -> np.ndarray:
    return sample_windows(model, [WORDS], count, min(length, 16))


costs_of = partial(cost_trials.measure_costs, windows=windows)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("sizes") / "toy", toy_llama_files(dtype=np.float32))


@pytest.fixture(scope="module")
def stats(toy: Path) -> Path:
    out = toy.parent / "toy.stats"
    calibrate(toy, out, texts=[WORDS], tokens=1024, window=32, gram=True)
    return out


def test_every_matrix_has_a_cost(toy: Path, stats: Path) -> None:
    with open_statistics(stats) as known:
        costs = costs_of(open_checkpoint(toy), known.inputs_of)
    with flyweight.open(toy) as source:
        matrices = {name for name in source if source[name].ndim == 2}
    assert costs.keys() == matrices
    assert all(cost.nats > 0 for cost in costs.values())


def test_a_cost_foretells_what_another_error_costs(toy: Path, stats: Path) -> None:
    """KL of a matrix in five bits, from what it costs in four: the square law, within a factor of two."""
    name = "model.layers.1.mlp.down_proj.weight"
    with open_statistics(stats) as known:
        four, five = (
            costs_of(open_checkpoint(toy), known.inputs_of, trial=cost_trials.TRIAL.with_params(bits=bits))[name].nats
            for bits in (4, 5)
        )
    assert 0.5 < four / five < 2


@pytest.mark.parametrize("to", ["hf", "safetensors", "mlx"])
def test_a_size_is_met_and_more_of_it_is_better(toy: Path, stats: Path, tmp_path: Path, to: str) -> None:
    with (
        pytest.raises(UnsupportedError) as refused,
        open_conversion(toy, tmp_path / "none", to=to, statistics=stats, target_size=1, measure_costs=costs_of),
    ):
        pass
    assert refused.value.code == "E_TARGET"
    losses = []
    for bits in (9.0, 12.0):
        with open_conversion(toy, tmp_path / "x", to=to, statistics=stats, target_bpw=bits, measure_costs=costs_of) as job:
            weights = sum(entry.spec.size for entry in job.placement.manifest.entries.values())
            assert job.nbytes <= bits * weights / 8
            losses.append(float(job.notes[0].rsplit(" ", 1)[1]))
    assert losses[1] <= losses[0]


def test_the_recipe_gives_the_same_file(toy: Path, stats: Path, tmp_path: Path) -> None:
    sized, again, recipe = tmp_path / "sized.safetensors", tmp_path / "again.safetensors", tmp_path / "chosen.toml"
    convert(toy, sized, statistics=stats, target_bpw=10.0, measure_costs=costs_of, recipe_out=recipe)
    convert(toy, again, statistics=stats, recipe=recipe)
    assert sized.read_bytes() == again.read_bytes()
    with pytest.raises(FlyweightError) as refused:  # the file is there
        convert(
            toy, tmp_path / "third.safetensors", statistics=stats, target_bpw=10.0, measure_costs=costs_of, recipe_out=recipe
        )
    assert refused.value.code == "E_EXISTS"


def test_what_runs_in_some_memory(toy: Path, stats: Path, tmp_path: Path) -> None:
    """The model that is made runs in it, with its weights in memory; a little less memory would have them streamed."""
    with open_model(toy) as model:
        beside = beside_weights(model.decoder.config)
    assert size_to_run_in(beside + 100_000, toy) == 100_000
    out = tmp_path / "out"
    report = flyweight.convert(toy, out, statistics=stats, target_ram=beside + 100_000, measure_costs=costs_of)
    with open_model(out, max_ram=beside + report.nbytes) as model:
        assert not model.streamed
    assert report.nbytes <= 100_000
    with pytest.raises(UnsupportedError, match="besides its weights") as refused:
        flyweight.convert(toy, tmp_path / "none.gguf", statistics=stats, target_ram=beside)
    assert refused.value.code == "E_TARGET"
    with pytest.raises(ValueError, match="not both"):
        flyweight.convert(toy, tmp_path / "none.gguf", statistics=stats, target_ram="1G", target_size="1M")


def test_what_is_refused(toy: Path, stats: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as refused:
        convert(toy, tmp_path / "x.gguf", target_bpw=4.0, measure_costs=costs_of)
    assert refused.value.code == "E_STATISTICS"
    with pytest.raises(UnsupportedError) as refused:
        convert(toy, tmp_path / "x.squizd", statistics=stats, target_bpw=4.0, measure_costs=costs_of)
    assert refused.value.code == "E_TARGET"
    for wrong in (
        {"target_bpw": 0},
        {"target_bpw": 65},
        {"target_bpw": 4, "target_size": "1M"},
        {"target_bpw": 4, "quant": "q4_0"},
    ):
        with pytest.raises(ValueError):
            convert(toy, tmp_path / "x.gguf", statistics=stats, measure_costs=costs_of, **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--target-bpw", "4", "--quant", "q4_0"), ("--target-bpw", "4", "--target-size", "1M"), ("--target-bpw", "0"),
        ("--recipe-out", "x.toml"), ("--target-bpw", "4"), ("--target-ram", "2G", "--target-bpw", "4"), ("--target-ram", "1M"),
    ],
)  # fmt: skip
def test_the_command_line_refuses(toy: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = command("convert", toy, tmp_path / "out.gguf", *arguments)
    assert ran.code in (2, 4)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (("--target-bpw", "0.5"), "cannot be reached"),
        (("--target-bpw", "40"), "not less than the source"),
        (("--target-size", "1G"), "not less than the source"),
        (("--target-ram", "8G"), "not less than the source"),
    ],
)
@pytest.mark.parametrize("to", ["mlx", "hf"])
def test_an_impossible_size_is_refused_before_the_work(
    toy: Path, tmp_path: Path, target: tuple[str, str], message: str, to: str
) -> None:
    began = time.monotonic()
    ran = command("convert", toy, tmp_path / "out", "--to", to, *target, "--calibrate")
    assert ran.code == 4
    assert ran.stderr.decode().count("E_TARGET") == 1
    assert message in ran.stderr.decode()
    assert not list(tmp_path.iterdir())
    assert time.monotonic() - began < 20


def test_a_size_and_statistics_at_once(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tmp_path / "words.txt"
    words.write_text(WORDS.content)
    out, recipe = tmp_path / "out.safetensors", tmp_path / "chosen.toml"
    stages: dict[str, list[tuple[int, int]]] = {}

    def gathering(*arguments: Any, **options: Any) -> Any:
        gathered.update(options)
        return calibrate(*arguments, **options)

    gathered: dict[str, Any] = {}
    monkeypatch.setattr("flyweight.calibration.before_conversion.calibrate", gathering)

    def progress_of(stage: str) -> Any:
        return lambda done, total: stages.setdefault(stage, []).append((done, total))

    report = flyweight.convert(
        toy, out, target_bpw=10.0, calibrate=[words], check=True, recipe_out=recipe, measure_costs=costs_of,
        progress_of=progress_of,
    )  # fmt: skip
    weights = sum(tensor.weights for tensor in report.tensors)
    assert 9 * weights / 8 < report.nbytes <= 10 * weights / 8
    assert gathered["gram"]  # for error feedback, which the types of this format take
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chosen.toml", "out.safetensors", "words.txt"]
    assert list(stages) == ["calibrating", "measuring costs"]  # a file without config.json cannot be run
    assert all(told[-1][0] == told[-1][1] for told in stages.values())
    with pytest.raises(FlyweightError) as refused:
        flyweight.convert(toy, tmp_path / "again.safetensors", target_bpw=10.0, calibrate=[words], recipe_out=recipe)
    assert refused.value.code == "E_EXISTS"


def test_a_dry_run_gathers_nothing(toy: Path, tmp_path: Path) -> None:
    ran = command("convert", toy, tmp_path / "out", "--to", "hf", "--target-bpw", "8", "--calibrate", "--dry-run")
    assert ran.code == 2
    assert b"--stats" in ran.stderr


def test_a_size_reads_well() -> None:
    assert str(Size(bits_per_weight=4.25)) == "4.25 bits a weight"
    assert str(Size(1_000_000)) == "1,000,000 bytes"
